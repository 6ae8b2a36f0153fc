# SPDX-License-Identifier: Apache-2.0
"""Runs a page of the documentation as its reader would: its files, and its shell lines in order."""

import os
import re
import signal
import subprocess
import time

from support import COMMAND, REPOSITORY

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"# ([\w.]+\.(?:py|yaml))\n")
SECONDS = 1200  # the limit for a line on a busy machine
# How shell lines on these pages begin; all other blocks show output.
STARTS = ("python", "pip ", "driftless ", "vllm ", "curl ", "export ", "cp ", "mv ", "rm ", ". ")


def blocks(page):
    return [body for _, body in BLOCK.findall((REPOSITORY / page).read_text())]


def write_files(page, work):
    """Writes the page's files; returns their names."""
    named = {found[1]: body for body in blocks(page) if (found := FILE.match(body))}
    for name, body in named.items():
        (work / name).write_text(body)
    return set(named)


def shell_lines(page):
    """The lines of all blocks that begin with a shell line, in order; continued lines are
    joined."""
    lines = []
    for body in blocks(page):
        if body.startswith(STARTS) and not FILE.match(body):
            lines += body.replace("\\\n", " ").splitlines()
    assert lines
    return lines


class Shell:
    """Runs lines in a directory; lines that end with & run until stop()."""

    def __init__(self, work, python, **env):
        self.work, self.started = work, []
        self.env = dict(env)
        paths = [str(work / "bin"), os.path.dirname(python), os.path.dirname(COMMAND)]
        self.env["PATH"] = os.pathsep.join([*paths, env["PATH"]])

    def run(self, line, seconds=SECONDS):
        """Runs a line, which must succeed; returns its output, with standard error at the end."""
        if line.startswith("export "):
            self.env |= dict(each.split("=", 1) for each in line.split()[1:])
            return ""
        if line.endswith("&"):
            self.start(line.removesuffix("&"))
            return ""
        made = subprocess.run(
            ["bash", "-c", line], cwd=self.work, env=self.env, capture_output=True, text=True,
            timeout=seconds,
        )  # fmt: skip
        assert made.returncode == 0, f"{line}: {made.returncode}: {made.stdout}{made.stderr}"
        return made.stdout + made.stderr

    def start(self, line):
        log = self.work / f"{line.split()[0]}-{time.monotonic_ns()}.log"
        with log.open("w") as out:
            process = subprocess.Popen(
                ["bash", "-c", f"exec {line}"], cwd=self.work, env=self.env, stdout=out,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        self.started.append((line, process, log))
        return process, log

    def ended(self, seconds=SECONDS):
        """Waits for all background lines, which must succeed; returns their output."""
        until, output = time.monotonic() + seconds, ""
        for line, process, log in self.started:
            code = process.wait(max(1, until - time.monotonic()))
            assert code == 0, f"{line}: {code}: {log.read_text()}"
            output += log.read_text()
        self.started.clear()
        return output

    def stop(self):
        for _, process, _ in self.started:
            try:
                os.killpg(process.pid, signal.SIGTERM)
                process.wait(10)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                pass
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()
