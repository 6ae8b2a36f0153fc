#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs a program beside a server: run_servers.py SERVER PROGRAM [ARGUMENT...]. The program gets its
address in DRIFTLESS_TEST_S3. Exit status 77, with the reason, if there is no such server here."""

import subprocess
import sys

import servers


def main():
    name, *line = sys.argv[1:]
    try:
        with servers.serve(name) as endpoint:
            more = {"DRIFTLESS_TEST_S3": endpoint}
            return subprocess.run(line, env=servers.client_environment(**more)).returncode
    except servers.Unavailable as reason:
        print(f"skipped: {name}: {reason}")
        return 77


if __name__ == "__main__":
    sys.exit(main())
