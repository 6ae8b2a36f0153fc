#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The changes of a recorded RL run in FP8 blocks, and the bytes of each encoding: of all steps and,
with `compact`, of each step. Prints tables in Markdown.

    fp8_trace.py DRIFTLESS TRACE [--work DIR]

TRACE is a directory as for `driftless bench --trace`. Every step is written as a checkpoint, quantized by
`driftless quantize`, and compared with the step before by `driftless compare`. Only codes are compared:
tensors that stay in bf16 are left out.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import tempfile

import numpy

TYPES = {"BF16": numpy.uint16, "I32": numpy.int32}


def read(path):
    raw = numpy.memmap(path, dtype=numpy.uint8, mode="r")
    size = int.from_bytes(raw[:8].tobytes(), "little")
    head = json.loads(raw[8 : 8 + size].tobytes())
    head.pop("__metadata__", None)
    return {name: (raw[8 + size + entry["data_offsets"][0] : 8 + size + entry["data_offsets"][1]]
                   .view(TYPES[entry["dtype"]]).reshape(entry["shape"])) for name, entry in head.items()}


def write(path, tensors):
    head, data, at = {}, [], 0
    for name, values in sorted(tensors.items()):
        head[name] = {"dtype": "BF16", "shape": list(values.shape), "data_offsets": [at, at + values.nbytes]}
        data.append(values.tobytes())
        at += values.nbytes
    text = json.dumps(head).encode()
    path.mkdir(parents=True)
    (path / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + b"".join(data))
    (path / "config.json").write_text("{}")


def output_of(*command):
    return json.loads(subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True).stdout)


def compare(driftless, before, after):
    found = output_of(driftless, "compare", before, after, "--json")
    return found["changed_units"], {each["encoding"]: each["bytes"] for each in found["encodings"]}


def measure(driftless, trace, work):
    state = {name: numpy.array(values) for name, values in read(trace / "base.safetensors").items()
             if values.ndim == 2 and not any(word in name for word in ("embed", "norm", "lm_head"))}
    changes = read(trace / "trace.safetensors")
    steps = sorted({name.split("/")[0] for name in changes})
    plain, codes = [work / "bf16_0"], [work / "fp8_0"]
    for number, step in enumerate(["", *steps]):
        for name, values in state.items():
            if step and f"{step}/{name}.indices" in changes:
                values.reshape(-1)[changes[f"{step}/{name}.indices"]] = changes[f"{step}/{name}.values"]
        plain.append(work / f"bf16_{number}")
        codes.append(work / f"fp8_{number}")
        write(plain[-1], state)
        output_of(driftless, "quantize", plain[-1], codes[-1], "--only", "*", "--json")
    total = sum(values.size for values in state.values())
    rows = {"bf16": [], "fp8": []}
    for number in range(1, len(steps) + 1):
        for key, folder in (("bf16", "bf16_"), ("fp8", "fp8_")):
            rows[key].append(compare(driftless, work / f"{folder}{number - 1}", work / f"{folder}{number}"))
    return total, rows


def container(found, encoding, total):
    """The bytes that do not grow with the number of changes, fitted over the steps. The fit allows for entropy-coded
    positions, which cost more bits per change if there are fewer changes."""
    changes = numpy.array([c for c, _ in found], float)
    terms = [numpy.ones_like(changes), changes]
    if encoding in ("compact", "xor"):
        terms.append(changes * numpy.log2(total / changes))
    return numpy.linalg.lstsq(numpy.stack(terms, 1), [each[encoding] for _, each in found], rcond=None)[0][0]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("driftless", type=pathlib.Path)
    parser.add_argument("trace", type=pathlib.Path)
    parser.add_argument("--work", type=pathlib.Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.work) as work:
        total, rows = measure(arguments.driftless.resolve(), arguments.trace, pathlib.Path(work))
    for key, found in rows.items():
        shares = [100 * changed / total for changed, _ in found]
        print(f"{key}: {min(shares):.3f} to {max(shares):.3f} % of {total} weights, mean {statistics.mean(shares):.4f}")
    ratio = sum(c for c, _ in rows["fp8"]) / sum(c for c, _ in rows["bf16"])
    print(f"changed codes for each changed weight: {ratio:.4f}\n")
    print("| encoding | bf16 | FP8 | FP8, without the container |\n|---|---|---|---|")
    for encoding in rows["bf16"][0][1]:
        if encoding == "full":
            continue
        bits = [8 * sum(each[encoding] for _, each in found) / sum(c for c, _ in found) for found in rows.values()]
        changes = sum(c for c, _ in rows["fp8"])
        rest = bits[1] - 8 * len(rows["fp8"]) * container(rows["fp8"], encoding, total) / changes
        print(f"| `{encoding}` | {bits[0]:.2f} | {bits[1]:.2f} | {rest:.2f} |")
    print("\n| step | bf16, % | bytes | FP8, % | bytes |\n|---|---|---|---|---|")
    for number, both in enumerate(zip(*rows.values()), 1):
        cells = [f"{100 * changed / total:.3f} | {sizes['compact']}" for changed, sizes in both]
        print(f"| {number} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
