"""Makes and applies deltas in the usual Python way, and prints how long that takes.

    numpy_rival.py TENSORS THREADS REPEATS     (descriptor 3: the old weights, 4: the new ones, bf16)

Prints one JSON object: what ran, how many elements changed, and the seconds of every repeat. A pool
of threads goes over the tensors (numpy and zstandard release the interpreter's lock), and buffers as
large as a tensor are allocated before the clock starts. Positions and values of all tensors end up
in two streams, as in a bucket; compressed ones stay apart. The scatter gets its positions as they
travel, in 32 bits.
"""
import json
import os
import platform
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import zstandard

LEVEL = 1


def load(descriptor, tensors):
    with os.fdopen(descriptor, "r+b") as file:
        weights = np.fromfile(file, dtype=np.uint16)
        file.truncate(0)  # nobody needs these bytes twice
    return np.split(weights, tensors)


def compress(array):
    return zstandard.ZstdCompressor(level=LEVEL).compress(array)


class Rival:
    def __init__(self, old, new):
        self.old, self.new = old, new
        self.masks = [np.empty(a.shape, dtype=bool) for a in old]
        self.byte_masks = [np.empty(a.nbytes, dtype=bool) for a in old]
        self.xors = [np.empty_like(a) for a in old]
        self.positions = [self.changed(i).astype(np.int32) for i in range(len(old))]
        self.values = [a.take(p) for a, p in zip(new, self.positions)]

    def changed(self, i):
        return np.flatnonzero(np.not_equal(self.old[i], self.new[i], out=self.masks[i]))

    def indices(self, i):
        positions = self.changed(i)
        return positions.astype(np.int32), self.new[i].take(positions)

    def deltas(self, i):
        positions = self.changed(i)
        gaps = np.diff(positions, prepend=-1) - 1
        wide = gaps.size > 0 and gaps.max() > 0xFFFF
        return gaps.astype(np.uint32 if wide else np.uint16), self.new[i].take(positions)

    def deltas_zstd(self, i):
        gaps, values = self.deltas(i)
        return compress(gaps), compress(values)

    def xor(self, i):
        return compress(np.bitwise_xor(self.old[i], self.new[i], out=self.xors[i]))

    def overwrite(self, i):
        old, new = self.old[i].view(np.uint8), self.new[i].view(np.uint8)
        positions = np.flatnonzero(np.not_equal(old, new, out=self.byte_masks[i]))
        count = np.array([positions.size], dtype=np.uint32)
        parts = (count, positions.astype(np.uint32), new.take(positions))
        return compress(np.concatenate([part.view(np.uint8) for part in parts]))

    def scatter(self, i):
        self.new[i][self.positions[i]] = self.values[i]


def join(pairs):
    positions, values = zip(*pairs)
    return np.concatenate([p.view(np.uint8) for p in positions]), np.concatenate(values)


def seconds_of(work, finish, tensors, pool, repeats):
    taken = []
    for repeat in range(repeats + 1):
        start = time.perf_counter()
        finish(list(pool.map(work, range(tensors))))
        if repeat > 0:  # the first one warms up
            taken.append(time.perf_counter() - start)
    return taken


def main():
    tensors, threads, repeats = (int(argument) for argument in sys.argv[1:4])
    rival = Rival(load(3, tensors), load(4, tensors))
    steps = {"indices": join, "deltas": join, "deltas_zstd": list, "xor": list}
    steps |= {"overwrite": list, "scatter": list}
    with ThreadPoolExecutor(threads) as pool:
        seconds = {
            name: seconds_of(getattr(rival, name), finish, tensors, pool, repeats)
            for name, finish in steps.items()
        }
    what = (
        f"numpy {np.__version__}, zstandard {zstandard.__version__}, "
        f"Python {platform.python_version()}"
    )
    changed = sum(positions.size for positions in rival.positions)
    print(json.dumps({"what": what, "changed": changed, "seconds": seconds}))


main()
