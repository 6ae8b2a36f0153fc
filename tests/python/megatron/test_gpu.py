# SPDX-License-Identifier: Apache-2.0
"""Real megatron-core on one GPU: 4 trainer ranks and 2 rollouts share it, over the nccl road.

    DRIFTLESS_TEST_GPU=1 DRIFTLESS_MEGATRON_PYTHON=python3 pytest tests/python/megatron/test_gpu.py

tests/gpu/parts/megatron.sh runs it. Weights are compared on the GPU.
"""

import json
import os

import jobs
import pytest
import test_quantized
from megatron_jobs import HERE, STEPS, Job, all_ended, nccl_by_hub, start_torchrun

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


@pytest.mark.parametrize("layout", LAYOUTS)
def test_rollouts_of_a_torchrun_job_find_it_by_the_hub(work, layout):
    """No MPI: torchrun starts the trainers, and the rollouts are processes of their own."""
    job = Job(work, **LAYOUTS[layout])
    job.over_nccl_by_hub()
    nccl0, nccl1 = job.start_disk_rollouts("nccl0", "nccl1")
    all_ended(80, trainers=job.start_torchrun(4), nccl0=nccl0, nccl1=nccl1)
    assert [v["version"] for v in job.versions()] == list(range(1, STEPS + 1))
    job.check(0, ("nccl0", "nccl1"), tiny_config.hf_config(job.job))


@pytest.mark.parametrize("group", ["torch", "hub"])
def test_a_rollout_holds_every_version_of_fsdp2_shards(work, group):
    """The trainers' group is torch's, or the one that the hub makes."""
    job = Job(work)
    path = work / "fsdp.yaml"
    path.write_text(nccl_by_hub(work, 1) + "snapshot: device\n")
    if group == "hub":
        path.write_text(path.read_text().replace("hub: {", "hub: { group: true,"))
    flags = ["--update-weight-mode", "delta", "--update-weight-transport", "nccl",
             "--update-weight-config", str(path)]  # fmt: skip
    job.disk = job.write("fsdp_rollout.json", {"work": str(work), "flags": flags})
    (rollout,) = job.start_disk_rollouts("fsdp0")
    trainers = start_torchrun(4, HERE.parent / "sharded/fsdp_trainer.py", "fsdp", path, work)
    all_ended(80, trainers=trainers, rollout=rollout)
    torch = pytest.importorskip("torch")
    versions = torch.load(work / "versions.pt")
    assert len(versions) == 5
    for number, wanted in enumerate(versions[1:], 1):
        held = job.rollout("fsdp0", number)["tensors"]
        assert set(held) == set(wanted)
        for name, tensor in wanted.items():
            assert held[name][2] == tensor.cpu().view(torch.uint8).numpy().tobytes(), (number, name)
    assert json.loads((work / "rank0.json").read_text())["elements"] > 0


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
