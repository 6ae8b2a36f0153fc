# SPDX-License-Identifier: Apache-2.0
"""Engines as processes of the tests."""

import contextlib
import json
import os
import select
import signal
import subprocess
import time
import urllib.error
import urllib.request

from environments import HERE

class HostError(Exception):
    def __init__(self, text, replies):
        super().__init__(text)
        self.replies = replies or []


class Process:
    """A process in a process group of its own, with its output in a file."""

    def __init__(self, command, log, **options):
        self.log = log
        with open(log, "w") as out:
            self.popen = subprocess.Popen(
                list(map(str, command)), stdout=out, stderr=subprocess.STDOUT,
                start_new_session=True, **options,
            )  # fmt: skip

    def tail(self, lines=40):
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def stop(self):
        """Kills the whole group: children of engines can outlive them."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.popen.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.popen.wait(10)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.popen.pid, signal.SIGKILL)
        self.popen.wait(10)


class Host(Process):
    """A script that executes commands: one JSON object per line on stdin, one per line on
    descriptor 3."""

    def __init__(self, python, script, options, env, log):
        read, write = os.pipe()
        # The shell connects the pipe to descriptor 3, which the script expects.
        line = ["bash", "-c", f'exec "$0" "$@" 3>&{write}', python, HERE / script]
        line += [json.dumps(options)]
        super().__init__(line, log, env=env, stdin=subprocess.PIPE, pass_fds=[write])
        os.close(write)
        self.answers, self.rest = read, b""
        self.ready = False

    def wait_ready(self, timeout_s=900):
        if not self.ready:
            self.answer(timeout_s)
            self.ready = True
        return self

    def do(self, what, patience_s=600, **arguments):
        self.wait_ready()
        self.popen.stdin.write(json.dumps({"do": what, **arguments}).encode() + b"\n")
        self.popen.stdin.flush()
        return self.answer(patience_s)

    def answer(self, timeout_s):
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self.rest:
            left = deadline - time.monotonic()
            ready, _, _ = select.select([self.answers], [], [], max(0, left))
            data = os.read(self.answers, 1 << 16) if ready else b""
            if not data:
                why = "ended" if ready else f"said nothing for {timeout_s} s"
                raise AssertionError(f"the engine {why}:\n{self.tail()}")
            self.rest += data
        line, self.rest = self.rest.split(b"\n", 1)
        found = json.loads(line)
        if "error" in found:
            raise HostError(found["error"], found["replies"])
        return found["value"]

    def stop(self):
        super().stop()
        os.close(self.answers)


class Server(Process):
    """An engine that serves HTTP."""

    def __init__(self, command, log, port, health="/health", address="127.0.0.1", **options):
        super().__init__(command, log, **options)
        self.url, self.health, self.ready = f"http://{address}:{port}", health, False

    def wait_ready(self, timeout_s=900):
        deadline = time.monotonic() + timeout_s
        while not self.ready:
            assert self.popen.poll() is None, f"the server ended:\n{self.tail()}"
            assert time.monotonic() < deadline, f"the server is not there yet:\n{self.tail()}"
            try:
                with urllib.request.urlopen(self.url + self.health, timeout=5):
                    self.ready = True
            except (urllib.error.URLError, OSError):
                time.sleep(0.2)
        return self

    def call(self, path, body=None, method="POST", timeout_s=600):
        data = None if method == "GET" else json.dumps(body or {}).encode()
        headers = {"Content-Type": "application/json"}
        asked = urllib.request.Request(self.url + path, data, headers, method=method)
        with urllib.request.urlopen(asked, timeout=timeout_s) as answer:
            text = answer.read()
        return json.loads(text) if text.strip()[:1] in (b"{", b"[") else text.decode()
