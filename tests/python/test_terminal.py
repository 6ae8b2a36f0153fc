# SPDX-License-Identifier: Apache-2.0
"""Output for people: a progress bar on a terminal for work that takes over a second, none
elsewhere."""

import ctypes
import os
import pty
import select
import subprocess
import time

import pytest

from jobs import PATIENCE_S
from support import COMMAND, publish
from test_environment import lock_held


def watch_opens(path):
    """A descriptor that is readable once a process has opened the file."""
    libc, IN_OPEN = ctypes.CDLL(None, use_errno=True), 0x20
    watch = libc.inotify_init()
    assert libc.inotify_add_watch(watch, os.fsencode(path), IN_OPEN) > 0, ctypes.get_errno()
    return watch


def until_closed(terminal):
    seen = b""
    try:
        while piece := os.read(terminal, 65536):
            seen += piece
    except OSError:  # the other side is closed: Linux returns EIO
        pass
    os.close(terminal)
    return seen.decode()


def test_long_work_shows_a_bar_and_wipes_it(pair):
    """The work waits for a lock, which this test holds for over a second of it."""
    publish(pair.published, pair.old_path, pair.new_path)
    target = pair.checkpoint()
    try:
        ours, theirs = pty.openpty()
    except OSError as reason:  # a bare chroot, say
        pytest.skip(f"no pseudo-terminal here: {reason}")
    with lock_held(target) as lock:
        opened = watch_opens(lock.name)
        line = [COMMAND, "apply", pair.published, "--to", target, "--wait", "300"]
        process = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=theirs)
        os.close(theirs)
        assert select.select([opened], [], [], PATIENCE_S)[0], "the work does not begin"
        time.sleep(1.2)
    os.close(opened)
    seen = until_closed(ours)
    assert process.wait() == 0
    assert "applying [" in seen and "%" in seen and "s left" in seen
    assert seen.endswith("\r\x1b[K")


def test_no_bar_without_a_terminal(work):
    line = [COMMAND, "synth", "--out", str(work / "run"), "--params", "100000"]
    result = subprocess.run(line, capture_output=True, text=True)
    assert result.returncode == 0 and result.stderr == ""
