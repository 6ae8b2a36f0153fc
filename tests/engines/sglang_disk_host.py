# SPDX-License-Identifier: Apache-2.0
"""Follows a run for a server, by files. Takes commands as vllm_host.py; SGLang's environment runs
it."""

import vllm_host


class Host:
    def __init__(self, options):
        from driftless.engines.sglang_disk import DiskFollower

        self.url = options["url"]
        self.follower = DiskFollower(**options)

    def update(self, timeout_s=300):
        done = self.follower.update(timeout_s)
        return done and {"version": done.version}

    def pull(self):
        from driftless.engines import sglang_disk
        from driftless.errors import UnsupportedError

        try:
            sglang_disk.pull(self.url, "/nowhere", "/nowhere", 1)
        except UnsupportedError as problem:
            return str(problem)
        return "it has one"


if __name__ == "__main__":
    vllm_host.main(Host)
