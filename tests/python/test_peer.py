# SPDX-License-Identifier: Apache-2.0
"""The peer road between processes that nothing joined: real trainers and rollouts, stopped and killed."""

import json
import signal
import time

import pytest
from jobs import CONFIGS, Files, ended, finish, make_run, need, stop_started, wait_for
from ports import free_port
from support import read_checkpoint

STEPS = 6


class Peers(Files):
    """A trainer and rollouts over the peer road, on this host."""

    def __init__(self, work, carrier):
        need("peer")
        super().__init__(work)
        self.config = CONFIGS / "peer.yaml"
        self.token = work / "token"
        self.token.write_text("0123456789abcdef0123456789abcdef\n")
        self.token.chmod(0o600)
        self.settings = ["--set", f"hub.address=127.0.0.1:{free_port()}", "--set", f"hub.token_file={self.token}"]
        self.set(**{"road.peer.carrier": carrier, "road.poll_longest": "20ms", "road.peer.stall": "2s"})
        self.set(**{"deadlines.connect": "30s", "deadlines.fetch": "5s", "anchors.every": "2"})


@pytest.fixture(autouse=True)
def processes():
    yield
    stop_started()


@pytest.fixture(params=["tcp", "shm"])
def job(request, work):
    return Peers(work, request.param)


def versions(path):
    return [json.loads(line)["version"] for line in path.read_text().splitlines()] if path.exists() else []


def test_every_rollout_ends_with_the_trainers_bits(job, work, rng):
    """Two that wait before the trainer starts, and one that joins in the middle of the run."""
    history = make_run(work / "run", rng, STEPS)
    base = ["--base", work / "run/step_000000"]
    early = [
        job.start_rollout(*base, "--save", work / f"early{i}", "--set", f"receiver.id=early{i}") for i in range(2)
    ]
    trainer = job.start_trainer(
        "--replay", work / "run", "--interval-ms", 300, "--rollouts", 2, "--set", f"metrics.file={work}/trainer.jsonl"
    )
    wait_for(lambda: 3 in versions(work / "trainer.jsonl"), "version 3", 60)
    late = job.start_rollout("--save", work / "late", "--set", "receiver.id=late")
    assert ended(trainer, 60)["version"] == STEPS
    for process in [*early, late]:
        assert ended(process, 60)["version"] == STEPS
    for saved in [work / "early0", work / "early1", work / "late"]:
        assert read_checkpoint(saved) == history[STEPS]
