# SPDX-License-Identifier: Apache-2.0
"""Ports for servers that are started a while after their port is chosen: torch's rendezvous, object
stores, engines."""

import itertools
import os
import random
import socket
from pathlib import Path

FIRST = 10000
SLICES = 32  # of the workers of a test run, one each


def _candidates():
    """Below those that the system hands out to whoever connects or asks for any: between the choice
    and the server's start a process of another test would be given it."""
    text = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text()
    end = int(text.split()[0])
    if end - FIRST < 100 * SLICES:  # a system that hands out nearly all
        return itertools.repeat(0)
    size = (end - FIRST) // SLICES
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:])
    own = range(FIRST + worker % SLICES * size, FIRST + (worker % SLICES + 1) * size)
    begin = random.Random(os.getpid()).randrange(size)  # runs beside each other
    return (own[(begin + at) % size] for at in itertools.count())


_next = _candidates()


def free_port():
    """One that nobody listens on, and that no other worker of this run is given."""
    for port in itertools.islice(_next, 1000):
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return probe.getsockname()[1]
    raise OSError("a thousand ports are taken")
