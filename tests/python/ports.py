# SPDX-License-Identifier: Apache-2.0
"""Ports for servers that start some time after their port is chosen: torch's rendezvous, object
stores, engines."""

import itertools
import os
import random
import socket
from pathlib import Path

FIRST = 10000
SLICES = 32  # one slice per worker of a test run


def _candidates():
    """Ports below the system's ephemeral range: the system could give one of that range to another
    test's process before the server starts."""
    text = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text()
    end = int(text.split()[0])
    if end - FIRST < 100 * SLICES:  # nearly all ports are ephemeral
        return itertools.repeat(0)
    size = (end - FIRST) // SLICES
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:])
    own = range(FIRST + worker % SLICES * size, FIRST + (worker % SLICES + 1) * size)
    begin = random.Random(os.getpid()).randrange(size)  # for concurrent test runs
    return (own[(begin + at) % size] for at in itertools.count())


_next = _candidates()


def free_port():
    """A port without a listener, which no other worker of this run gets."""
    for port in itertools.islice(_next, 1000):
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return probe.getsockname()[1]
    raise OSError("a thousand ports are taken")
