#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints the table of docs/operate/configuration.md from `driftless info --json` on standard input:

    build/bin/driftless info --json | scripts/config_table.py

A test compares them, so the page cannot disagree with the command."""

import json
import sys


def table(info):
    rows = ["| key | value | default | meaning |", "|---|---|---|---|"]
    for key in info["keys"]:
        value = key["default"]
        text = value if isinstance(value, str) else json.dumps(value)
        default = f"`{text}`" if text else "-"
        rows.append(f"| `{key['key']}` | {key['value']} | {default} | {key['help']} |")
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    sys.stdout.write(table(json.load(sys.stdin)))
