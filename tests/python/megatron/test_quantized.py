# SPDX-License-Identifier: Apache-2.0
"""Real megatron-core on the CPU, and rollouts with a quantized base: each parameter of each version
equals the output of an independent converter for the trainer's bfloat16. Tensor parallelism and the
distributed optimizer's flat ranges divide blocks of 128."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from megatron_jobs import GATHERED, Job, assert_same, ended

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import int4_reference  # noqa: E402
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
GROUP = 32


def in_blocks(name, bits):
    codes, scales = quantize("linear", bits.reshape(-1), bits.shape)
    return {name: codes, name + "_scale_inv": scales}


def in_groups(name, bits):
    rows, columns = bits.shape
    packed, scales = int4_reference.quantize(bits.reshape(-1), bits.shape, GROUP)
    return {
        name + "_packed": np.frombuffer(packed, "<u4").reshape(rows, columns // 8),
        name + "_scale": np.frombuffer(scales, "<u2").reshape(rows, columns // GROUP),
        name + "_shape": np.array([rows, columns], "<i4"),
    }


SCHEMES = {"fp8_block": in_blocks, "int4_group": in_groups}


def quantized(tensors, scheme="fp8_block"):
    """The bits of the Hugging Face tensors, quantized as in the base."""
    made = {}
    for name, bits in tensors.items():
        bits = np.ascontiguousarray(bits)
        made |= SCHEMES[scheme](name, bits) if name.endswith(QUANTIZED) else {name: bits}
    return made


def make_base(work, layout, scheme="fp8_block"):
    """The model before its first step, quantized."""
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
    ok("quantize", bf16, work / "base", "--only", "*_proj.weight", "--scheme", scheme)
    return work / "base"


def follow(work, base, layout, *flags, scheme="fp8_block"):
    """Trains with rollouts that start from the base; checks every version that they hold."""
    (work / "run").mkdir()
    job = Job(work / "run", steps=STEPS, sizes=SIZES, **layout)
    flags = ["--update-weight-hf-checkpoint", str(base), *flags]
    flags += ["--update-weight-quantization", scheme]
    job.over_disk(*flags, rollouts=("disk0",), layout="frames", base=str(base))
    rollouts = job.start_disk_rollouts("disk0")
    job.run()
    ended(*rollouts)
    config = tiny_config.hf_config(job.job)
    versions = job.versions()
    assert [v["version"] for v in versions] == list(range(1, STEPS + 1))
    for version in versions:
        wanted = quantized(job.expected(version["label"], config), scheme)
        found = job.rollout("disk0", version["version"])
        assert found["digest"] == version["digest"]
        assert_same(found["tensors"], wanted, f"{layout} {version}")
        assert version["changed"] > 0
        assert not any("without capture" in note for note in version["notes"]), version["notes"]
    return versions


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
    versions = follow(work, base, LAYOUTS[layout], *(GATHERED if gathered else ()))
    assert all(v["publishers"] == (2 if gathered else 4) for v in versions)


@pytest.mark.long
def test_source_ranks_gather_for_groups_in_int4(work):
    """Although the optimizer is known: its shards divide groups."""
    base = make_base(work, LAYOUTS["tp2_pp2"], "int4_group")
    versions = follow(work, base, LAYOUTS["tp2_pp2"], scheme="int4_group")
    assert all(v["publishers"] == 2 for v in versions)
