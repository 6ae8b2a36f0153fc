"""Real megatron-core trains on the CPU, and after every step the rollouts hold its weights."""

import pytest
from megatron_jobs import STEPS, Job, ended

import tiny_config

LAYOUTS = {
    "tp2_pp2": {"tp": 2, "pp": 2},
    "tp2_dp2": {"tp": 2},
    "tp2_dp2_overlap": {"tp": 2, "overlap": True},
    "pp2_vpp2": {"pp": 2, "vpp": 2},
    "moe_ep2": {"ep": 2, "moe": True},
    "moe_ep2_pp2": {"ep": 2, "pp": 2, "moe": True},
}


# These have tensor, pipeline, virtual pipeline and expert parallelism between them.
SHORT = ("tp2_pp2", "pp2_vpp2", "moe_ep2_pp2")
LONG = [pytest.param(name, marks=pytest.mark.long) for name in LAYOUTS if name not in SHORT]


@pytest.mark.parametrize("layout", [*SHORT, *LONG])
def test_rollouts_hold_the_weights_after_every_step(work, layout):
    """Over both roads at once: 2 rollouts under the same mpirun, 2 that only see the files."""
    job = Job(work, **LAYOUTS[layout])
    job.over_rma()
    job.over_disk()
    rollouts = job.start_disk_rollouts("disk0", "disk1")
    job.run(rma_rollouts=2)
    ended(*rollouts)
    config = tiny_config.hf_config(job.job)
    for session, names in ((0, ("rma4", "rma5")), (1, ("disk0", "disk1"))):
        versions = job.versions(session)
        assert [v["version"] for v in versions] == list(range(1, STEPS + 1))
        assert all(v["changed"] > 0 for v in versions)
        # The first may be dense: data-parallel ranks that started unlike agree only after a step.
        assert all(v["encoding"].startswith("deltas") for v in versions[1:])
        job.check(session, names, config)


def test_under_torchrun_the_publishers_agree_without_mpi(work):
    job = Job(work, pp=2, steps=2)
    job.over_disk(outside_mpi=False, rollouts=("disk0",))
    rollouts = job.start_disk_rollouts("disk0")
    job.run_torchrun(trainers=2)
    ended(*rollouts)
    assert [v["version"] for v in job.versions()] == [1, 2]
    job.check(0, ["disk0"], tiny_config.hf_config(job.job))
