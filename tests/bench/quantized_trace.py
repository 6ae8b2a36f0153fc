#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Density and bytes of a recorded run in bfloat16, and as FP8 blocks: docs/operate/numbers.md.

    quantized_trace.py TRACE [--driftless build/bin/driftless] [--rule linear]

TRACE: base.safetensors, the bfloat16 weights of version 0, and trace.safetensors, of step S and
tensor T sSSS/T.indices (int32, flat, ascending) and sSSS/T.values (the new ones). `driftless
quantize` makes the FP8 base, and `driftless trainer --replay` publishes all steps in each encoding.
Bits per change: all bytes of all version directories / changed units.
"""

import argparse
import json
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

MATRICES = "_proj.weight"  # what is quantized; the run has no other tensors
ENCODINGS = ("compact", "deltas_zstd", "deltas", "indices")


def read_safetensors(path):
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    header.pop("__metadata__", None)
    found = {}
    for name, entry in header.items():
        begin, end = (8 + size + at for at in entry["data_offsets"])
        found[name] = (entry["dtype"], entry["shape"], np.frombuffer(data[begin:end], np.uint8))
    return found


def write_safetensors(path, tensors):
    header, at = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + data.nbytes]}
        at += data.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.parent.mkdir(parents=True)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, _, data in tensors.values():
            file.write(data.tobytes())


def make_run(trace, run):
    """step_000000/ ... in bfloat16. How many steps."""
    found = read_safetensors(trace / "base.safetensors")
    weights = {name: found[name] for name in found if name.endswith(MATRICES)}
    changes = read_safetensors(trace / "trace.safetensors")
    steps = sorted({name.split("/", 1)[0] for name in changes})
    words = {name: data.view("<u2").copy() for name, (_, _, data) in weights.items()}
    for number, step in enumerate([None, *steps]):
        for name in words if step else ():
            if f"{step}/{name}.indices" not in changes:
                continue
            at = changes[f"{step}/{name}.indices"][2].view("<i4")
            words[name][at] = changes[f"{step}/{name}.values"][2].view("<u2")
        now = {n: (d, s, words[n].view(np.uint8)) for n, (d, s, _) in weights.items()}
        write_safetensors(run / f"step_{number:06d}" / "model.safetensors", now)
        (run / f"step_{number:06d}" / "config.json").write_text("{}\n")
    return len(steps)


def call(*line):
    done = subprocess.run([str(part) for part in line], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{line}: {done.stderr}")


def publish(driftless, work, base, encoding, rule):
    """(bytes, changed, total) of each version."""
    road = work / f"{base.name}_{encoding}"
    config = work / "config.yaml"
    config.write_text(
        f"road: {{ kind: shared_fs, shared_fs: {{ dir: {road} }}, layout: frames }}\n"
        f"encoding: {encoding}\nkeep_versions: 0\nquantize: {{ rule: {rule} }}\n"
    )
    line = ["trainer", "--config", config, "--replay", work / "run", "--base", base]
    call(driftless, *line)
    found = []
    for directory in sorted(road.glob("weight_v*")):
        said = json.loads((directory / "manifest.json").read_text())
        size = sum(file.stat().st_size for file in directory.iterdir())
        found.append((size, said["changed_units"], said["total_units"]))
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trace", type=Path)
    parser.add_argument("--driftless", type=Path, default=Path("build/bin/driftless"))
    parser.add_argument("--rule", default="linear")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        work = Path(directory)
        steps = make_run(given.trace, work / "run")
        bf16 = work / "run" / "step_000000"
        call(given.driftless, "quantize", bf16, work / "fp8", "--rule", given.rule)
        print(f"{steps} steps, rule {given.rule}")
        for name, base in (("bf16", bf16), ("FP8", work / "fp8")):
            for encoding in ENCODINGS:
                found = publish(given.driftless, work, base, encoding, given.rule)
                assert len(found) == steps, f"{len(found)} versions of {steps} steps"
                size, changed = (sum(each[n] for each in found) for n in (0, 1))
                shares = [f"{100 * c / t:.3f}" for _, c, t in found]
                print(
                    f"{name} {encoding}: {8 * size / changed:.2f} bits per change, "
                    f"{size / steps / 1e3:.1f} kB a step ({found[0][0] / 1e3:.1f} the first, "
                    f"{found[-1][0] / 1e3:.1f} the last), {shares[0]} % changed in the first, "
                    f"{shares[-1]} % in the last step",
                    flush=True,
                )


if __name__ == "__main__":
    main()
