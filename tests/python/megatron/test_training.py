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


@pytest.mark.parametrize("layout", LAYOUTS)
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
        job.check(session, names, config)
