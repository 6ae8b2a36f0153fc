#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The bits that other programs need per changed weight of a recorded RL run: prints a table in Markdown.

    compact_rivals.py TRACE [--compact-bench build/bin/compact_bench]

TRACE is a directory as for `driftless bench --trace`. Run it in a temporary environment with torch,
safetensors, numpy and `fireworks-delta-compression==0.1.0` (which installs `zstd`):

- NeMo-RL: gaps of 16 bits between positions (32 bits for larger gaps) and old XOR new, each stream of a tensor
  compressed by zstd level 1, without a container.
- Fireworks: delta_compress(src, dst, compression_format="arc_v3") for each tensor, as in its README, checked by
  delta_decompress(). It tries several codecs at once, and takes the smallest of those that finish within a multiple
  of the first one's time, so its size depends on the load of the machine. The last row waits for all codecs.

The last column is 10^9 weights per second on one core, encode and decode.
"""
import argparse
import os
import pathlib
import subprocess
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np  # noqa: E402
import torch  # noqa: E402
import zstd  # noqa: E402
from fireworks_delta_compression import delta_compress, delta_decompress  # noqa: E402
from fireworks_delta_compression.backends import arc3  # noqa: E402
from safetensors import safe_open  # noqa: E402


def bits(tensor):
    return tensor.contiguous().view(-1).view(torch.uint16).numpy()


def nemo_encode(old, new):
    old, new = bits(old), bits(new)
    places = np.flatnonzero(old != new)
    gaps = np.diff(places, prepend=-1) - 1
    width = np.uint16 if gaps.size == 0 or gaps.max() < 1 << 16 else np.uint32
    streams = [gaps.astype(width).tobytes(), (old[places] ^ new[places]).tobytes()]
    return width, [zstd.compress(stream, 1) if stream else b"" for stream in streams]


def nemo_decode(old, coded):
    width, (gaps, values) = coded
    new = bits(old).copy()
    if gaps:
        places = np.cumsum(np.frombuffer(zstd.decompress(gaps), width).astype(np.int64) + 1) - 1
        new[places] ^= np.frombuffer(zstd.decompress(values), np.uint16)
    return new


def arc_encode(old, new):
    blob, checksum = delta_compress(src=old, dst=new, compression_format="arc_v3")
    return checksum, [blob.numpy().tobytes()]


def arc_encode_patiently(old, new):
    multiplier, arc3._CANDIDATE_WAIT_MULTIPLIER = arc3._CANDIDATE_WAIT_MULTIPLIER, 1000
    try:
        return arc_encode(old, new)
    finally:
        arc3._CANDIDATE_WAIT_MULTIPLIER = multiplier


def arc_decode(old, coded):
    checksum, (blob,) = coded
    diff = torch.frombuffer(bytearray(blob), dtype=torch.uint8)
    return bits(delta_decompress(src=old, compressed_diff=diff, checksum=checksum, compression_format="arc_v3"))


class Rival:
    def __init__(self, name, encode, decode):
        self.name, self.encode, self.decode = name, encode, decode
        self.bytes, self.encode_s, self.decode_s = 0, 0.0, 0.0

    def run(self, old, new):
        start = time.perf_counter()
        coded = self.encode(old, new)
        middle = time.perf_counter()
        restored = self.decode(old, coded)
        self.decode_s += time.perf_counter() - middle
        self.encode_s += middle - start
        self.bytes += sum(map(len, coded[1]))
        assert np.array_equal(restored, bits(new)), self.name


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=pathlib.Path)
    parser.add_argument("--compact-bench", type=pathlib.Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    base = safe_open(options.trace / "base.safetensors", "pt")
    trace = safe_open(options.trace / "trace.safetensors", "pt")
    weights = {name: base.get_tensor(name) for name in base.keys()}  # noqa: SIM118
    keys = set(trace.keys())
    changes = units = step = 0
    rivals = [
        Rival("NeMo-RL: gaps, xor, zstd", nemo_encode, nemo_decode),
        Rival("Fireworks arc_v3 0.1.0", arc_encode, arc_decode),
        Rival("the same, all of its codecs tried", arc_encode_patiently, arc_decode),
    ]
    while any(key.startswith(f"s{step + 1:03}/") for key in keys):
        step += 1
        for name, old in weights.items():
            if f"s{step:03}/{name}.indices" not in keys:
                continue
            places = trace.get_tensor(f"s{step:03}/{name}.indices").long()
            new = old.clone()
            new.view(-1)[places] = trace.get_tensor(f"s{step:03}/{name}.values")
            for rival in rivals:
                rival.run(old, new)
            changes, units = changes + len(places), units + old.numel()
            weights[name] = new
    print(f"| {step} steps, {changes} changes of {units} | bits per change | G weights/s |\n|---|---|---|")
    for rival in rivals:
        rates = f"{units / rival.encode_s / 1e9:.3f} / {units / rival.decode_s / 1e9:.3f}"
        print(f"| {rival.name} | {8 * rival.bytes / changes:.2f} | {rates} |")
    if options.compact_bench:
        subprocess.run([options.compact_bench, options.trace], check=True)


main()
