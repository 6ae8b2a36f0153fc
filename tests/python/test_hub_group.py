# SPDX-License-Identifier: Apache-2.0
"""Trainers that only know RANK and WORLD_SIZE: the hub forms their groups."""

import json
import os
import signal
import sys

import binding
import jobs
import pytest
from hub_keys import hub_keys, hub_yaml
from jobs import Files, ended, finish, make_run, need, wait_for
from support import read_checkpoint

RANKS, STEPS = 3, 6


@pytest.fixture(autouse=True)
def processes():
    yield
    jobs.stop_started()


class ByHub(Files):
    """Trainers over files, or over the peer road, whose service has the group's port."""

    def __init__(self, work, road="flush", **settings):
        need("peer")
        super().__init__(work, **{"deadlines.publish": "20s", **hub_keys(work), **settings})
        if road == "peer":
            self.config = jobs.CONFIGS / "peer.yaml"
            self.set(**{"anchors.every": "2"})

    def start_rank(self, rank, *arguments, world=RANKS):
        place = {"RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank)}
        metrics = ["--set", f"metrics.file={self.work}/{{role}}_{{rank}}.jsonl"]
        return self.start_trainer(*arguments, *metrics, env={**jobs.environment(), **place})

    def start_ranks(self, *arguments):
        return [self.start_rank(rank, *arguments) for rank in range(RANKS)]

    def versions(self):
        path = self.work / "trainer_0.jsonl"
        return [json.loads(line)["version"] for line in path.read_text().splitlines()] if path.exists() else []


@pytest.mark.parametrize("road", ["flush", "peer"])
def test_every_rank_publishes_its_part_and_a_rollout_has_the_bits(road, work, rng):
    history = make_run(work / "run", rng, STEPS)
    job = ByHub(work, road)
    trainers = job.start_ranks("--replay", work / "run", "--rollouts", 1)
    rollout = job.start_rollout("--base", work / "run/step_000000", "--save", work / "saved")
    for trainer in trainers:
        result = finish(trainer)
        assert result.returncode == 0, result.stderr
    assert ended(rollout)["version"] == STEPS
    assert read_checkpoint(work / "saved/rollout_00") == history[STEPS]
    assert job.versions() == list(range(1, STEPS + 1))
    for rank in range(1, RANKS):
        assert (work / f"trainer_{rank}.jsonl").exists(), "it published nothing"


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_other_ranks_name_a_missing_rank_and_a_new_start_continues(how, work, rng):
    """Messages of the first start do not reach the second, even if a stopped rank sends them
    then."""
    history = make_run(work / "run", rng, STEPS)
    # Short enough to be waited for, and long enough for three processes on a busy machine.
    job = ByHub(work, **{"deadlines.connect": "20s", "deadlines.publish": "10s"})
    line = ["--replay", work / "run", "--interval-ms", 1000]
    first = job.start_ranks(*line)
    wait_for(lambda: 2 in job.versions(), "the second version")
    first[1].send_signal(how)
    failed = finish(first[0])  # the command's trainer ends at the first failed version
    assert failed.returncode != 0
    assert "nothing from publisher rank 1" in failed.stderr, failed.stderr
    second = job.start_ranks(*line)
    wait_for(lambda: max(job.versions()) > 3, "a version of the second start")
    if how == signal.SIGSTOP:
        first[1].send_signal(signal.SIGCONT)
    rollout = job.start_rollout("--base", work / "run/step_000000", "--save", work / "saved")
    for trainer in second:
        result = finish(trainer)
        assert result.returncode == 0, result.stderr
    for trainer in first[1:]:
        assert finish(trainer).returncode != 0
    assert ended(rollout)["version"] >= STEPS
    assert read_checkpoint(work / "saved/rollout_00") == history[STEPS]


def test_a_wait_for_a_rank_is_visible_and_its_deadline_names_it(work, rng):
    make_run(work / "run", rng, 1)
    job = ByHub(work, **{"deadlines.connect": "7s"})
    members = [job.start_rank(rank, "--replay", work / "run") for rank in (0, 2)]
    result = finish(members[0])
    missing = "hub: publisher rank 1 of 3 have not joined the group of trainers"
    assert f"still waiting after 5 s: {missing}" in result.stderr, result.stderr
    assert result.returncode == 6 and f"{missing}: gave up after 7000 ms" in result.stderr
    alone = finish(members[1])
    assert alone.returncode != 0 and "publisher rank" in alone.stderr, alone.stderr


def test_a_rank_without_a_leader_reports_that_it_waits(work):
    job = ByHub(work, **{"deadlines.connect": "7s"})
    result = finish(job.start_rank(1))
    assert "still waiting after 5 s: publisher rank 1 joins the group of trainers: " in result.stderr
    assert result.returncode == 6 and "Connection refused" in result.stderr, result.stderr


def test_a_missing_setting_is_named(work):
    job = Files(work, **{"hub.group": "true"})
    result = finish(job.start_trainer())
    assert result.returncode != 0 and "hub.group: true: hub.token_file is missing" in result.stderr
    driftless = binding.driftless()
    config = driftless.Config.parse(f"road: {{ kind: shared_fs, shared_fs: {{ dir: {work}/r }} }}\n" + hub_yaml(work))
    with pytest.raises(driftless.errors.InvalidArgumentError, match="driftless.launch\\(rank=, world=\\)"):
        driftless.Job(config, "trainer", launched=driftless.launch(launcher="ray"))


GROUP = """
import sys, driftless
rank, attempt = int(sys.argv[2]), sys.argv[3]
place = driftless.launch(rank=rank, world=3, attempt=attempt)
with driftless.Job(driftless.Config.load(sys.argv[1]), "trainer", launched=place) as job:
    group = driftless.Group(job)
    assert (group.rank, group.size) == (rank, 3) == (job.rank, job.trainers)
    for epoch in range(1, 4):
        group.begin_epoch(epoch)
        said = group.gather(b"%d of %d" % (rank, epoch), 20)
        assert said == ([b"%d of %d" % (r, epoch) for r in range(3)] if rank == 0 else []), said
        assert group.broadcast(b"word" if rank == 0 else b"", 20) == b"word"
    second = driftless.Group(job)
    assert second.broadcast(b"other" if rank == 0 else b"", 20) == b"other"
try:
    group.gather(b"", 1)
except driftless.errors.InvalidArgumentError as closed:
    print(f"closed: {closed}")
"""


def test_python_has_the_group(work):
    binding.driftless()
    (work / "c.yaml").write_text(f"road: {{ kind: shared_fs, shared_fs: {{ dir: {work}/r }} }}\n" + hub_yaml(work))
    env = {**os.environ, "PYTHONPATH": str(binding.PACKAGE)}
    line = [sys.executable, "-c", GROUP, str(work / "c.yaml")]
    members = [jobs.start([*line, str(rank), "first"], env=env) for rank in range(3)]
    for member in members:
        result = finish(member)
        assert result.returncode == 0, result.stderr
        assert "closed: the group's job is closed" in result.stdout
