# SPDX-License-Identifier: Apache-2.0
"""Real megatron-core on the CPU, and rollouts with an FP8 base: each parameter of each version
equals the output of an independent converter for the trainer's bfloat16. Tensor parallelism and the
distributed optimizer's flat ranges divide blocks of 128."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from megatron_jobs import GATHERED, Job, assert_same, ended

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import tiny_config  # noqa: E402
from quantize_reference import quantize  # noqa: E402
from support import Tensor, ok, write_checkpoint  # noqa: E402

STEPS = 4
SIZES = {"hidden_size": 160, "intermediate_size": 288}  # matrices of several blocks
LAYOUTS = {
    "tp2_pp2": {"tp": 2, "pp": 2},
    "tp2_dp2_overlap": {"tp": 2, "overlap": True},
    "dp4": {},
    "tp2_dp2_ordinary": {"tp": 2, "distributed": False},
    "moe_ep2_pp2": {"ep": 2, "pp": 2, "moe": True},
}
KINDS = {2: "BF16", 4: "F32"}
QUANTIZED = ("_proj.weight",)


def quantized(tensors, rule="linear"):
    """The bits of the Hugging Face tensors in FP8 blocks, as in the base."""
    made = {}
    for name, bits in tensors.items():
        bits = np.ascontiguousarray(bits)
        if not name.endswith(QUANTIZED):
            made[name] = bits
            continue
        codes, scales = quantize(rule, bits.reshape(-1), bits.shape)
        made[name], made[name + "_scale_inv"] = codes, scales
    return made


def make_base(work, layout, **job):
    """The model before its first step, in FP8 blocks."""
    (work / "first").mkdir()
    first = Job(work / "first", steps=0, sizes=SIZES, **layout)
    first.run()
    config = tiny_config.hf_config(first.job)
    tensors = {}
    for name, bits in first.expected("start", config).items():
        bits = np.ascontiguousarray(bits)
        tensors[name] = Tensor(KINDS[bits.itemsize], bits.shape, bits.tobytes())
    bf16 = write_checkpoint(work / "bf16", tensors)
    (bf16 / "config.json").write_text(json.dumps(config))
    ok("quantize", bf16, work / "fp8", "--only", "*_proj.weight", **job)
    return work / "fp8"


@pytest.mark.parametrize(
    ("layout", "gathered"),
    [
        *((name, False) for name in LAYOUTS),
        ("tp2_pp2", True),
    ],
)
@pytest.mark.long
def test_rollouts_hold_the_output_of_a_converter(work, layout, gathered):
    base = make_base(work, LAYOUTS[layout])
    (work / "run").mkdir()
    job = Job(work / "run", steps=STEPS, sizes=SIZES, **LAYOUTS[layout])
    flags = ["--update-weight-hf-checkpoint", str(base), *(GATHERED if gathered else ())]
    flags += ["--update-weight-quantization", "fp8_block"]
    job.over_disk(*flags, rollouts=("disk0",), layout="frames", base=str(base))
    rollouts = job.start_disk_rollouts("disk0")
    job.run()
    ended(*rollouts)
    config = tiny_config.hf_config(job.job)
    versions = job.versions()
    assert [v["version"] for v in versions] == list(range(1, STEPS + 1))
    for version in versions:
        wanted = quantized(job.expected(version["label"], config))
        found = job.rollout("disk0", version["version"])
        assert found["digest"] == version["digest"]
        assert_same(found["tensors"], wanted, f"{layout} {version}")
        assert version["changed"] > 0
        assert not any("without capture" in note for note in version["notes"]), version["notes"]
