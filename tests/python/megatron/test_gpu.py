# SPDX-License-Identifier: Apache-2.0
"""Real megatron-core on one GPU: 4 trainer ranks and 2 rollouts share it, over the nccl road.

    DRIFTLESS_TEST_GPU=1 DRIFTLESS_MEGATRON_PYTHON=python3 pytest tests/python/megatron/test_gpu.py

tests/gpu/parts/megatron.sh runs it. Weights are compared on the GPU.
"""

import os

import pytest
import test_quantized
from megatron_jobs import STEPS, Job

import tiny_config

pytestmark = pytest.mark.skipif(
    os.environ.get("DRIFTLESS_TEST_GPU") != "1",
    reason="for machines with a GPU, by tests/gpu/run.sh",
)

LAYOUTS = {"tp2_pp2": {"tp": 2, "pp": 2}, "moe_ep2": {"ep": 2, "moe": True}}


@pytest.mark.parametrize("snapshot", ["none", "pinned", "device"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_rollouts_hold_the_weights_after_every_step(work, layout, snapshot):
    job = Job(work, **LAYOUTS[layout])
    job.over_nccl()
    config = (work / "nccl.yaml").read_text()
    (work / "nccl.yaml").write_text(config + f"snapshot: {snapshot}\n")
    job.run(rma_rollouts=2, timeout=120)
    versions = job.versions(0)
    assert [v["version"] for v in versions] == list(range(1, STEPS + 1))
    assert all(v["changed"] > 0 for v in versions)
    job.check(0, ("nccl4", "nccl5"), tiny_config.hf_config(job.job))
    split = versions[-1]["split"]
    parts = ", ".join(f"{name} {ms:.1f} ms" for name, ms in split.items())
    print(f"{layout}, snapshot {snapshot}: {versions[-1]['ms']:.1f} ms a step for us: {parts}")


@pytest.fixture(scope="module")
def quantized_base(tmp_path_factory):
    return test_quantized.make_base(tmp_path_factory.mktemp("base"), LAYOUTS["tp2_pp2"])


@pytest.mark.parametrize("snapshot", ["none", "pinned", "device"])
def test_rollouts_with_fp8_blocks_hold_the_output_of_a_converter(work, quantized_base, snapshot):
    """Weights on a GPU are quantized there: with `none` by every rank, else by source ranks."""
    flags = ("--update-weight-snapshot", snapshot)
    versions = test_quantized.follow(work, quantized_base, LAYOUTS["tp2_pp2"], *flags)
    assert all(v["publishers"] == (4 if snapshot == "none" else 2) for v in versions)
    print(f"FP8, snapshot {snapshot}: {versions[-1]['ms']:.1f} ms a step for us")
