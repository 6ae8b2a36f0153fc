# SPDX-License-Identifier: Apache-2.0
"""The rule int4_group of docs/operate/quantized.md, compared with the output of slime's converter for
the same weights: driftless quantize, and the converter of the other tests."""

import os
import subprocess
from pathlib import Path

import int4_reference
import numpy as np
import pytest
import support

RECORDED = support.REPOSITORY / "tests/golden/int4_converter.safetensors"
NAMES = ("random", "trained", "stepped", "edges", "odd")
# The largest bfloat16 is 96 times in `edges`. slime multiplies its code by the rounded scale, which
# overflows: the code of an infinity does not fit, and changes the two codes above it.
OVERFLOWS = 96


def codes(tensor):
    """A row of eight for each word."""
    return np.frombuffer(tensor.data, "<u4")[:, None] >> (4 * np.arange(8, dtype="<u4")) & 15


@pytest.mark.parametrize("group", [32, 128])
def test_quantize_makes_what_slime_makes(work, group):
    recorded, _ = support.read_safetensors(RECORDED)
    tensors = {f"{name}.weight": recorded[name] for name in NAMES}
    bf16 = support.write_checkpoint(work / "bf16", tensors)
    (bf16 / "config.json").write_text("{}")
    only = [word for name in tensors for word in ("--only", name)]
    scheme = ["--scheme", "int4_group", "--group", group]
    support.ok("quantize", bf16, work / "int4", *scheme, *only)
    made = support.read_checkpoint(work / "int4")
    for name in NAMES:
        differ = codes(made[f"{name}.weight_packed"]) != codes(recorded[f"{name}.{group}.packed"])
        assert differ.sum() == (3 * OVERFLOWS if name == "edges" else 0), name
        assert made[f"{name}.weight_scale"].data == recorded[f"{name}.{group}.scales"].data, name


@pytest.mark.parametrize("group", [32, 128])
def test_the_tests_converter_makes_what_slime_makes(group):
    """For finite weights; it overflows likewise."""
    recorded, _ = support.read_safetensors(RECORDED)
    for name in NAMES[:-1]:
        weights = recorded[name]
        with np.errstate(over="ignore"):
            packed, scales = int4_reference.quantize(weights.words(), weights.shape, group)
        assert packed == recorded[f"{name}.{group}.packed"].data, name
        assert scales == recorded[f"{name}.{group}.scales"].data, name


def test_the_record_matches_the_converter_of_today(tmp_path):
    checkout = os.environ.get("DRIFTLESS_SLIME")
    if not checkout:
        pytest.skip("DRIFTLESS_SLIME names no checkout of slime")
    venvs = Path(os.environ.get("DRIFTLESS_VENVS", support.REPOSITORY / "build/venvs"))
    out = tmp_path / "record.safetensors"
    script = support.REPOSITORY / "tests/python/record_int4.py"
    line = [venvs / "sglang/bin/python", script, checkout, RECORDED, out]
    subprocess.run(line, check=True, timeout=300, capture_output=True)
    assert support.read_safetensors(out) == support.read_safetensors(RECORDED)
