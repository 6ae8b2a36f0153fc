# SPDX-License-Identifier: Apache-2.0
"""Rollouts that join, stop, die and return; over TCP they serve each other the parts that they have
read.

Seeded; DRIFTLESS_SOAK_SEED sets another seed."""

import json
import os
import random
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path

import pytest
from jobs import ended, make_run, stop_started
from support import COMMAND, read_checkpoint
from test_peer import Peers, ports_of, start_trainer

SEED = int(os.environ.get("DRIFTLESS_SOAK_SEED", "1"))
ROLLOUTS = 8
KEPT = 4 << 20  # road.peer.keep: room for the chunks of some versions
GROWTH_KB = 24 << 10
PAUSE_S = {"tcp": 0.1, "nixl": 0.5}  # a process that reads by NIXL takes a second of a core to start


def lines_of(path):
    """The complete lines: an incomplete line of a killed process does not count."""
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


class Rollout:
    """One place among the rollouts: a sequence of processes."""

    def __init__(self, job, number):
        self.job, self.number, self.starts = job, number, 0
        self.process, self.stopped = None, False
        self.metrics = []

    def start(self):
        self.starts += 1
        name = f"rollout{self.number}_{self.starts}"
        self.metrics.append(self.job.work / f"{name}.jsonl")
        line = self.job.rollout("--json", "--set", f"receiver.id={name}", "--set", f"metrics.file={self.metrics[-1]}")
        self.errors = self.job.work / f"{name}.err"
        with self.errors.open("w") as errors:
            self.process = subprocess.Popen([COMMAND, *map(str, line)], stdout=subprocess.DEVNULL, stderr=errors)

    def follows(self):
        """Whether this process has committed a version."""
        return self.process is not None and bool(lines_of(self.metrics[-1]))

    def send(self, number):
        self.process.send_signal(number)
        self.stopped = number == signal.SIGSTOP

    def gone(self):
        self.process.wait(300)
        self.process, self.stopped = None, False


def resident_kb(pid):
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    return 0


def act(rollout, chance, counts):
    """Does something at random to one of the rollouts."""
    if rollout.process is None:
        counts["started"] += 1
        rollout.start()
        return
    assert rollout.process.poll() is None, f"ended by itself: {rollout.errors.read_text()}"
    if rollout.stopped:
        counts["continued"] += 1
        rollout.send(signal.SIGCONT)
    elif not rollout.follows():
        return
    elif chance < 0.5:
        counts["stopped"] += 1
        rollout.send(signal.SIGSTOP)
    elif chance < 0.8:
        counts["killed"] += 1
        rollout.send(signal.SIGKILL)
        rollout.gone()
    else:
        counts["left"] += 1
        rollout.send(signal.SIGTERM)
        rollout.gone()


def soak(work, rng, steps, carrier="tcp"):
    job = Peers(work, carrier)
    job.set(**{"mode": "full", "road.ring_size": "8MiB", "road.peer.keep": KEPT, "road.peer.late": "500ms"})
    job.set(**{"anchors.every": 8, "deadlines.fetch": "10s"})
    history = make_run(work / "run", rng, steps, rows=6000)
    chances, counts = random.Random(SEED), Counter()
    saved = ["--save", work / "saved", "--set", "receiver.id=steady"]
    saved += ["--set", f"metrics.file={work}/steady.jsonl"]
    steady = job.start_rollout(*saved)
    trainer = start_trainer(job, work, "--interval-ms", 100, "--rollouts", 1)
    rollouts = [Rollout(job, number) for number in range(ROLLOUTS - 1)]
    resident = {trainer.pid: [], steady.pid: []}
    served = False

    def published():
        return max((line["version"] for line in lines_of(work / "trainer.jsonl")), default=0)

    until = time.monotonic() + 300 + 10 * steps
    try:
        while published() < steps - 2:
            assert time.monotonic() < until, f"at version {published()}: {counts}"
            assert trainer.poll() is None and steady.poll() is None, f"at version {published()}: {counts}"
            act(chances.choice(rollouts), chances.random(), counts)
            served = served or bool(ports_of(steady.pid))
            for pid, sizes in resident.items():
                sizes.append(resident_kb(pid))
            time.sleep(chances.uniform(0, PAUSE_S[carrier]))
        following = [each for each in rollouts if each.follows()]
        for each in following:
            each.send(signal.SIGCONT)
        assert ended(trainer)["version"] == steps
        assert ended(steady)["version"] == steps
        for each in following:
            assert each.process.wait(300) == 0, each.errors.read_text()
    finally:
        for each in rollouts:
            if each.process is not None:
                each.process.kill()
                each.process.wait()
        stop_started()

    assert read_checkpoint(work / "saved/rollout_00") == history[steps]
    digests = {line["version"]: line["digest"] for line in lines_of(work / "trainer.jsonl")}
    commits = 0
    for path in [work / "steady.jsonl", *(path for each in rollouts for path in each.metrics)]:
        for line in lines_of(path):
            if line["version"] == 0:  # it ended before it took a version
                continue
            assert line["digest"] == digests[line["version"]], f"{path} at version {line['version']}"
            commits += 1
    for pid, sizes in resident.items():
        half = len(sizes) // 2
        assert max(sizes[half:]) < max(sizes[:half]) + GROWTH_KB, f"process {pid} grows: {sizes}"
    peak = {name: max(resident[each.pid]) >> 10 for name, each in (("trainer", trainer), ("steady", steady))}
    print(f"{carrier}: {steps} versions, {commits} commits proven by {ROLLOUTS} rollouts, {dict(counts)}, "
          f"peak memory in MiB: {peak}")  # fmt: skip
    # UCX listens in every process; only over TCP does that show that a rollout serves.
    assert served or carrier != "tcp", "no rollout served what it read"
    assert min(counts[what] for what in ("started", "stopped", "continued", "killed")) > 0, counts


def test_rollouts_that_come_and_go_serve_each_other_what_is_proven(work, rng):
    soak(work, rng, 40)


@pytest.mark.long
@pytest.mark.parametrize("carrier", ["tcp", "nixl"])
def test_two_hundred_versions(work, rng, carrier):
    soak(work, rng, 200, carrier)
