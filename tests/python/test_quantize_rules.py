# SPDX-License-Identifier: Apache-2.0
"""The rules of docs/operate/quantized.md, in numpy, compared with the output of slime's and
SGLang's converters for the same weights. tests/contract/quantize_test.cpp compares the library with
the same record."""

import itertools
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
import quantize_reference
import support

RECORDED = support.REPOSITORY / "tests/golden/fp8_converters.safetensors"
# The rule of each converter, and the number of different codes and scales of the odd blocks.
CONVERTERS = {
    "slime_live": ("linear", 5, 0),  # NaNs and infinite weights: -448
    "slime_tool": ("linear_div", 3072, 1),  # the block with a NaN is NaN
    "sglang_ue8m0": ("ue8m0", 5172, 3),  # two blocks with NaN or infinities, one that is halved
}


@pytest.mark.parametrize("converter", CONVERTERS)
def test_the_rules_match_the_converters(converter):
    recorded, _ = support.read_safetensors(RECORDED)
    rule, codes_differ, scales_differ = CONVERTERS[converter]
    for name in ("random", "trained", "stepped", "edges", "odd"):
        weights = recorded[name]
        codes, scales = quantize_reference.quantize(rule, weights.words(), weights.shape)
        theirs = recorded[f"{name}.{converter}.codes"].words().reshape(codes.shape)
        their_scales = recorded[f"{name}.{converter}.scales"].words().reshape(scales.shape)
        differ = ((codes != theirs).sum(), (scales.view("<u4") != their_scales).sum())
        assert differ == ((codes_differ, scales_differ) if name == "odd" else (0, 0)), name


def test_a_signalling_nan_does_not_hide_the_largest_weight():
    """For all places of both weights, because the order in which numpy visits a block is not
    defined."""
    for largest, nan in itertools.permutations(range(12), 2):
        words = np.full((4, 131), 0x3C00, "<u2")  # the second block is 4x3
        words[largest // 3, 128 + largest % 3] = 0x3F80  # 1
        words[nan // 3, 128 + nan % 3] = 0x7F81
        _, scales = quantize_reference.quantize("linear", words, words.shape)
        assert scales[0, 1] == np.float32(1) / np.float32(448), (largest, nan)


def test_the_record_matches_the_converters_of_today(tmp_path):
    checkout = os.environ.get("DRIFTLESS_SLIME")
    if not checkout:
        pytest.skip("DRIFTLESS_SLIME names no checkout of slime")
    venvs = Path(os.environ.get("DRIFTLESS_VENVS", support.REPOSITORY / "build/venvs"))
    out = tmp_path / "record.safetensors"
    script = support.REPOSITORY / "tests/python/record_converters.py"
    line = [venvs / "sglang/bin/python", script, checkout, RECORDED, out]
    subprocess.run(line, check=True, timeout=300, capture_output=True)
    assert support.read_safetensors(out) == support.read_safetensors(RECORDED)
