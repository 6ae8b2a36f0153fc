# SPDX-License-Identifier: Apache-2.0
"""Every rank publishes what its optimizer writes: real megatron-core on the CPU, and rollouts that
hold its weights after every step, bit for bit."""

import json

import pytest
from megatron_jobs import GATHERED, Job, ended

import tiny_config

STEPS = 4
LAYOUTS = {
    "tp2_pp2": {"tp": 2, "pp": 2},
    "tp2_dp2": {"tp": 2},
    "tp2_dp2_overlap": {"tp": 2, "overlap": True},
    "pp2_vpp2_dp2": {"pp": 2, "vpp": 2},
    "pp2_dp2_tied": {"pp": 2, "tied": True},
    "moe_ep2_dp4": {"ep": 2, "moe": True},
    "moe_ep2_pp2": {"ep": 2, "pp": 2, "moe": True},
    "glm4_ep2_dp4": {"ep": 2, "family": "glm4_moe"},  # no optimizer writes the router's bias
    "tp2_dp2_ordinary": {"tp": 2, "distributed": False},
}
SHORT = ("tp2_dp2_overlap", "pp2_dp2_tied", "glm4_ep2_dp4")
NONE = ("--update-weight-snapshot", "none")
LONG = [pytest.param(name, marks=pytest.mark.long) for name in LAYOUTS if name not in SHORT]


def config_of(job):
    return tiny_config.hf_config(job.job)


@pytest.mark.parametrize("layout", [*SHORT, *LONG])
def test_rollouts_hold_the_weights_after_every_step(work, layout):
    job = Job(work, steps=STEPS, **LAYOUTS[layout])
    job.over_rma(rollouts=("rma4",))
    job.over_disk(*NONE, rollouts=("disk0",), layout="frames")
    rollouts = job.start_disk_rollouts("disk0")
    job.run(rma_rollouts=1)
    ended(*rollouts)
    for session, name in ((0, "rma4"), (1, "disk0")):
        versions = job.versions(session)
        assert [v["version"] for v in versions] == list(range(1, STEPS + 1))
        assert all(v["changed"] > 0 for v in versions)
        assert all(v["encoding"].startswith("deltas") for v in versions[1:])
        assert all(v["publishers"] == 4 for v in versions)
        # All changes were captured at the optimizers' writes.
        assert not any("without capture" in note for v in versions[1:] for note in v["notes"])
        job.check(session, [name], config_of(job))


def test_our_messages_carry_no_weights_and_delay_no_step(work):
    """The publishers agree during the next step, and their messages are counted. For comparison,
    the same steps are published by source ranks, to which shards are sent."""
    job = Job(work, steps=STEPS, tp=2, count_messages=True)
    job.over_disk(*GATHERED, road="gathered", rollouts=())
    job.over_disk(*NONE, rollouts=("disk0",), layout="frames")
    rollouts = job.start_disk_rollouts("disk0")
    job.run()
    ended(*rollouts)
    job.check(1, ["disk0"], config_of(job))
    of_a_version = min(v["wire_bytes"] for v in job.versions(1))
    sent = 0
    for rank in range(4):
        gathered, ours = json.loads((work / f"messages_{rank}.json").read_text())
        assert ours["step"] == {}
        assert set(ours["background"]) == {"write"}
        calls, size = ours["background"]["write"]
        assert 0 < calls <= 6 * STEPS
        assert size < STEPS * of_a_version / 10
        sent += gathered["step"].get("isend", [0, 0])[1]
    assert sent > 0.4 * STEPS * job.versions()[0]["full_bytes"]
