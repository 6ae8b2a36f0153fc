# SPDX-License-Identifier: Apache-2.0
"""--use-p2p-weight-update: real megatron-core under torchrun, and rollouts that read from its
ranks. They hold its weights after every step, bit for bit, and nothing is gathered."""

import json

import pytest
from megatron_jobs import Job, ended

import tiny_config

STEPS = 4
LAYOUTS = {
    "tp2_pp2": {"tp": 2, "pp": 2},
    "moe_ep2_pp2": {"ep": 2, "pp": 2, "moe": True},
}


def config_of(job):
    return tiny_config.hf_config(job.job)


def run(job, *rollouts):
    following = job.start_disk_rollouts(*rollouts)
    result = job.run_torchrun(4)
    ended(*following)
    assert [v["version"] for v in job.versions()] == list(range(1, STEPS + 1))
    assert all(v["publishers"] == 4 for v in job.versions())
    job.check(0, rollouts, config_of(job))
    return result


def encodings(job):
    return ["full" if v["encoding"] == "full" else "delta" for v in job.versions()]


# The first step from random weights may be dense; all others are deltas.
@pytest.mark.parametrize(
    "layout", ["tp2_pp2", pytest.param("moe_ep2_pp2", marks=pytest.mark.long)]
)
def test_rollouts_hold_the_weights_after_every_step_and_nothing_is_gathered(work, layout):
    job = Job(work, steps=STEPS, count_messages=True, **LAYOUTS[layout])
    job.over_peer(rollouts=("peer0", "peer1"))
    run(job, "peer0", "peer1")
    assert encodings(job)[1:] == ["delta"] * (STEPS - 1)
    for rank in range(4):
        (ours,) = json.loads((work / f"messages_{rank}.json").read_text())
        assert ours["step"] == {} and set(ours["background"]) == {"write"}, ours


@pytest.mark.long
@pytest.mark.parametrize("layout", LAYOUTS)
def test_dense_steps(work, layout):
    job = Job(work, steps=STEPS, **LAYOUTS[layout])
    job.over_peer("--update-weight-wait", settings="", rollouts=("peer0",))
    path = work / "peer.yaml"
    path.write_text(path.read_text() + "full_above_density: 0.0000001\n")
    run(job, "peer0")
    assert encodings(job) == ["full"] * STEPS


@pytest.mark.long
@pytest.mark.parametrize("layout", LAYOUTS)
def test_full_versions(work, layout):
    job = Job(work, steps=STEPS, **LAYOUTS[layout])
    job.over_peer(mode="full", rollouts=("peer0",))
    run(job, "peer0")
    assert encodings(job) == ["full"] * STEPS


@pytest.mark.long
def test_mpirun(work):
    job = Job(work, steps=STEPS, **LAYOUTS["tp2_pp2"])
    job.over_peer(rollouts=("peer0",))
    following = job.start_disk_rollouts("peer0")
    job.run()
    ended(*following)
    job.check(0, ["peer0"], config_of(job))


@pytest.mark.long
def test_versions_larger_than_the_ring_go_by_files(work):
    job = Job(work, steps=STEPS, **LAYOUTS["tp2_pp2"])
    job.over_peer(
        "--update-weight-wait", "--update-weight-disk-dir", str(work / "road"),
        mode="full", settings=", ring_size: 64KiB", rollouts=("peer0",),
    )  # fmt: skip
    result = run(job, "peer0")
    (line,) = [text for text in result.stderr.splitlines() if "[P2P]" in text]
    assert line.endswith("; using shared_fs instead."), line
