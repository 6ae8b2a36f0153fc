# SPDX-License-Identifier: Apache-2.0
"""Makes and applies deltas in the usual Python way, and prints how long that takes.

    numpy_rival.py OLD NEW TENSORS THREADS REPEATS    (files with the old and the new weights, bf16)

Prints one JSON object: what ran, how many elements changed, and the seconds of every repeat. The
code is what people usually write: plain expressions, with temporaries made by numpy. A thread pool
processes the tensors (numpy and zstandard release the GIL). It ends at the same point as Driftless'
benchmark: positions and values of all tensors in two streams, as in a bucket; compressed tensors
stay separate.
"""
import json
import platform
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

try:
    import zstandard
except ImportError:  # measure what needs no compression
    zstandard = None

LEVEL = 1


def load(path, tensors):
    with open(path, "r+b") as file:
        weights = np.fromfile(file, dtype=np.uint16)
        file.truncate(0)  # frees the memory: the bytes are read once
    return np.split(weights, tensors)


def compress(array):
    return zstandard.ZstdCompressor(level=LEVEL).compress(array)


class Rival:
    def __init__(self, old, new):
        self.old, self.new = old, new
        self.received = [self.indices(i) for i in range(len(old))]

    def indices(self, i):
        positions = np.flatnonzero(self.old[i] != self.new[i])
        return positions.astype(np.int32), self.new[i].take(positions)

    def deltas(self, i):
        positions = np.flatnonzero(self.old[i] != self.new[i])
        gaps = np.diff(positions, prepend=-1) - 1
        wide = gaps.size > 0 and gaps.max() > 0xFFFF
        return gaps.astype(np.uint32 if wide else np.uint16), self.new[i].take(positions)

    def deltas_zstd(self, i):
        gaps, values = self.deltas(i)
        return compress(gaps), compress(values)

    def xor(self, i):
        return compress(self.old[i] ^ self.new[i])

    def overwrite(self, i):
        old, new = self.old[i].view(np.uint8), self.new[i].view(np.uint8)
        positions = np.flatnonzero(old != new)
        count = np.array([positions.size], dtype=np.uint32)
        parts = (count, positions.astype(np.uint32), new.take(positions))
        return compress(np.concatenate([part.view(np.uint8) for part in parts]))

    def scatter(self, i):
        positions, values = self.received[i]  # int32, as on the road
        self.new[i][positions] = values


def join(pairs):
    positions, values = zip(*pairs)
    return np.concatenate([p.view(np.uint8) for p in positions]), np.concatenate(values)


def seconds_of(work, finish, tensors, pool, repeats):
    taken = []
    for repeat in range(repeats + 1):
        start = time.perf_counter()
        finish(pool.map(work, range(tensors)))
        if repeat > 0:  # the first repeat warms up
            taken.append(time.perf_counter() - start)
    return taken


def main():
    tensors, threads, repeats = (int(argument) for argument in sys.argv[3:])
    rival = Rival(load(sys.argv[1], tensors), load(sys.argv[2], tensors))
    steps = {"indices": join, "deltas": join, "scatter": list}
    if zstandard is not None:
        steps |= {"deltas_zstd": list, "xor": list, "overwrite": list}
    with ThreadPoolExecutor(threads) as pool:
        seconds = {
            name: seconds_of(getattr(rival, name), finish, tensors, pool, repeats)
            for name, finish in steps.items()
        }
    what = (
        f"numpy {np.__version__}, zstandard {getattr(zstandard, '__version__', 'missing')}, "
        f"Python {platform.python_version()}"
    )
    changed = sum(positions.size for positions, _ in rival.received)
    print(json.dumps({"what": what, "changed": changed, "seconds": seconds}))


main()
