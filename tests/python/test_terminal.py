# SPDX-License-Identifier: Apache-2.0
"""Output for people: a progress bar on a terminal for work that takes over a second, none
elsewhere."""

import os
import pty
import signal
import subprocess
import time

import pytest

from support import COMMAND


def standard_error_on_a_terminal(line):
    """Runs the command with a terminal as stderr; stops it for a while, so that it takes over a
    second."""
    try:
        ours, theirs = pty.openpty()
    except OSError as reason:  # a bare chroot, say
        pytest.skip(f"no pseudo-terminal here: {reason}")
    process = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=theirs)
    os.close(theirs)
    time.sleep(0.03)
    process.send_signal(signal.SIGSTOP)
    time.sleep(1.2)
    process.send_signal(signal.SIGCONT)
    seen = b""
    try:
        while piece := os.read(ours, 65536):
            seen += piece
    except OSError:  # the other side is closed: Linux returns EIO
        pass
    os.close(ours)
    assert process.wait() == 0
    return seen.decode()


def test_long_work_shows_a_bar_and_wipes_it(work):
    line = [COMMAND, "synth", "--out", str(work / "run"), "--params", "30000000", "--steps", "3"]
    seen = standard_error_on_a_terminal(line)
    assert "synthesizing [" in seen and "%" in seen and "s left" in seen
    assert seen.endswith("\r\x1b[K")


def test_no_bar_without_a_terminal(work):
    line = [COMMAND, "synth", "--out", str(work / "run"), "--params", "100000"]
    result = subprocess.run(line, capture_output=True, text=True)
    assert result.returncode == 0 and result.stderr == ""
