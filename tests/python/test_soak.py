# SPDX-License-Identifier: Apache-2.0
"""A soak with real processes: publishers under mpirun whose roads fail at random; receivers that
sleep, are stopped, are killed and come back. Every version that a receiver ever committed has the
trainer's bytes.

Seeded. DRIFTLESS_SOAK_VERSIONS and DRIFTLESS_SOAK_SEED set its length and seed."""

import os
import random
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path

import pytest

from jobs import need, need_mpirun, start, stop_started
from support import COMMAND

# tests/fault/soak_test.cpp has a short form, over roads in memory.
pytestmark = pytest.mark.long
VERSIONS = int(os.environ.get("DRIFTLESS_SOAK_VERSIONS", "100"))
SEED = int(os.environ.get("DRIFTLESS_SOAK_SEED", "1"))
SECONDS = 60 + VERSIONS  # far more than it needs
PEER = Path(COMMAND).parent / "soak_peer"
RECEIVERS = 4


class Soak:
    def __init__(self, work: Path, road: str):
        need_mpirun()
        if not PEER.exists():
            pytest.skip(f"{PEER} is not there: it is built with the tests")
        self.work, self.road = work, road
        self.random = random.Random(SEED)
        self.until = time.monotonic() + SECONDS
        self.counts = Counter()

    def peer(self, role: str, number: int) -> list[str]:
        return [str(PEER), role, self.road, str(self.work), str(VERSIONS), str(SEED), str(number)]

    def mpirun(self, *parts: tuple[int, list[str]], options=()) -> subprocess.Popen:
        line = ["mpirun", "--oversubscribe", "--bind-to", "none", *options]
        for number, (count, command) in enumerate(parts):
            line += [":"] if number else []
            line += ["-n", str(count), *command]
        return start(line)

    def lines(self, name: str) -> list[list[str]]:
        path = self.work / name
        text = path.read_text() if path.exists() else ""
        # An incomplete line of a killed process does not count.
        return [line.split(" ", 2) for line in text.splitlines(keepends=True) if line[-1] == "\n"]

    def published(self) -> int:
        done = [int(line[1]) for line in self.lines("trainer_0.log") if line[0] == "published"]
        return max(done, default=0)

    def over(self) -> bool:
        assert time.monotonic() < self.until, f"{self.road}: at version {self.published()}"
        return (self.work / "last").exists()

    def kill_trainers(self, job: subprocess.Popen):
        """Kills one of them; mpirun ends the others."""
        self.counts["job killed"] += 1
        rank = self.random.randrange(2)
        os.kill(int((self.work / f"trainer_{rank}.pid").read_text()), signal.SIGKILL)
        job.communicate(timeout=30)

    def stop_for_a_while(self, pid: int):
        """Sends SIGSTOP: the receiver neither reads nor reports."""
        self.counts["stopped"] += 1
        os.kill(pid, signal.SIGSTOP)
        time.sleep(self.random.uniform(0.05, 0.5))
        os.kill(pid, signal.SIGCONT)

    def check(self, numbers, failed: int):
        """Checks that no byte is wrong, that all receivers reached the end, and that enough
        happened."""
        versions, counts = {}, self.counts
        for what, version, *value in self.lines("trainer_0.log"):
            counts[f"trainer {what}"] += 1
            if what == "attempt":
                versions[version] = value[0].strip()
            if what == "failed":  # the other ranks saw the failure before their deadline
                assert float(value[0].split()[0]) < 5000, value
        last = (self.work / "last").read_text()
        for number in range(RECEIVERS):
            held = None
            for what, *found in self.lines(f"receiver_{number}.log"):
                what = what.strip()
                counts[what] += 1
                if what in ("commit", "anchor", "held"):
                    held, value = found[0], found[1].strip()
                    assert versions[held] == value, f"receiver {number}: wrong bytes at {held}"
            assert number not in numbers or held == last, f"receiver {number} ended at {held}"
        print(f"soak over {self.road}: {last} versions, {dict(counts)}, 0 wrong")
        assert int(last) >= VERSIONS
        assert counts["trainer failed"] >= failed
        assert counts["commit"] > VERSIONS / 4 and counts["failed"] > 0
        assert counts["anchor"] > 0 and counts["joined"] > RECEIVERS


@pytest.fixture
def soak(work, request):
    yield Soak(work, request.param)
    stop_started()


@pytest.mark.parametrize("soak", ["hdf5"], indirect=True)
def test_a_soak_over_hdf5(soak):
    """Receivers are separate processes, killed and restarted; so is the publishing job."""
    need("shared_fs/hdf5")
    job = soak.mpirun((2, soak.peer("trainer", RECEIVERS)))
    receivers = [start(soak.peer("receiver", number)) for number in range(RECEIVERS)]
    kills = [VERSIONS // 3, VERSIONS * 2 // 3]  # the job is killed at these versions
    while not soak.over():
        assert job.poll() is None, job.communicate()
        if kills and soak.published() >= kills[0]:
            kills.pop(0)
            soak.kill_trainers(job)
            job = soak.mpirun((2, soak.peer("trainer", RECEIVERS)))
        number = soak.random.randrange(RECEIVERS)
        if soak.random.random() < 0.3:
            soak.stop_for_a_while(receivers[number].pid)
        elif soak.random.random() < 0.3:
            receivers[number].kill()
            receivers[number].communicate()
            soak.counts["receiver killed"] += 1
            receivers[number] = start(soak.peer("receiver", number))
        time.sleep(0.05)
    for process in [job, *receivers]:
        out, err = process.communicate(timeout=30)
        assert process.returncode == 0, err + out
    soak.check(range(RECEIVERS), VERSIONS // 20)
    assert soak.counts["job killed"] == 2 and soak.counts["receiver killed"] >= 2


@pytest.mark.parametrize("soak", ["mpi_rma"], indirect=True)
def test_a_soak_over_mpi_rma(soak):
    """One job. Receivers rejoin within their processes; a killed one stays away, because a process
    cannot rejoin an MPI job, and no process waits for it."""
    job = soak.mpirun(
        (2, soak.peer("trainer", RECEIVERS)),
        (RECEIVERS, soak.peer("receiver", 0)),
        options=["--enable-recovery"],
    )
    victim = soak.random.randrange(RECEIVERS)
    alive = [number for number in range(RECEIVERS) if number != victim]
    while not soak.over():
        assert job.poll() is None, job.communicate()
        number = soak.random.choice(alive)
        pid = soak.work / f"receiver_{number}.pid"
        if pid.exists() and soak.random.random() < 0.3:
            soak.stop_for_a_while(int(pid.read_text()))
        if soak.published() >= VERSIONS // 2 and not soak.counts["receiver killed"]:
            os.kill(int((soak.work / f"receiver_{victim}.pid").read_text()), signal.SIGKILL)
            soak.counts["receiver killed"] += 1
            (soak.work / f"receiver_{victim}.done").touch()
        time.sleep(0.05)
    out, err = job.communicate(timeout=60)  # its exit status is that of the killed process
    assert "soak_peer: " not in err, err + out
    soak.check(alive, VERSIONS // 20)
