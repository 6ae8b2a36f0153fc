# SPDX-License-Identifier: Apache-2.0
"""The main job under faults of files and of the machine: late and damaged versions, full disks,
clocks that go backwards. test_faults.py has faults of processes."""

import contextlib
import json
import os
import random
import shutil
import subprocess
import threading
import time

import numpy as np
import pytest

from jobs import Files, ended, environment, make_run, stop_started, wait_for
from support import assert_refusal, ok, read_checkpoint, run, state_version


@pytest.fixture(autouse=True)
def nothing_stays():
    yield
    stop_started()


# --- late and out of order -----------------------------------------------------------------------


class Replica(threading.Thread):
    """Copies a publisher's directory file by file: in any order, slowly, with half-written files,
    and under the final names."""

    def __init__(self, source, target, seed):
        super().__init__()
        self.source, self.target, self.random = source, target, random.Random(seed)
        self.copied, self.over = [], threading.Event()

    def pending(self):
        names = []
        for folder, folders, files in os.walk(self.source):
            folders[:] = [f for f in folders if not f.startswith(".")]
            names += [os.path.join(folder, f) for f in files if not f.startswith(".")]
        names = [os.path.relpath(name, self.source) for name in names]
        return sorted(set(names) - set(self.copied))

    def copy(self, name):
        data = (self.source / name).read_bytes()
        (self.target / name).parent.mkdir(parents=True, exist_ok=True)
        with open(self.target / name, "wb", buffering=0) as file:
            for half in (data[: len(data) // 2], data[len(data) // 2 :]):
                file.write(half)
                time.sleep(self.random.uniform(0, 0.01))
        self.copied.append(name)

    def run(self):
        while True:
            last = self.over.is_set()
            names = self.pending()
            if names:
                self.copy(self.random.choice(names))
            elif last:
                return
            else:
                time.sleep(0.005)

    def finish(self):
        self.over.set()
        self.join(300)

    def disorder(self):
        """The number of versions whose DONE came before another file, and of versions that came
        before an earlier one."""
        at = {name: place for place, name in enumerate(self.copied)}
        done = {name.split("/")[0]: at[name] for name in at if name.endswith("/DONE")}
        within = {n.split("/")[0] for n in at if "/" in n and at[n] > done[n.split("/")[0]]}
        steps = sorted(name for name in done if name.startswith("weight"))
        across = [a for a, b in zip(steps, steps[1:]) if done[a] > done[b]]
        return len(within), len(across)


@pytest.mark.parametrize("road,seed", [("flush", 1), ("hf_delta", 2), ("flush", 3)])
def test_versions_that_appear_late_and_out_of_order(work, rng, road, seed):
    history = make_run(work / "run", rng, 15)
    near = Files(work, road)
    far = Files(work / "far", road)
    far.dir.mkdir(parents=True)
    trainer = near.start_trainer("--replay", work / "run", "--interval-ms", 20)
    rollout = far.start_rollout("--save", work / "save", "--verbose")
    wait_for(near.version_dir(3).exists, "version 3")
    replica = Replica(near.dir, far.dir, seed)
    replica.start()
    assert ended(trainer)["version"] == 15
    replica.finish()
    assert ended(rollout)["version"] == 15
    assert read_checkpoint(work / "save/rollout_00") == history[15]
    within, across = replica.disorder()
    assert within >= 3 and across >= 2, "no file was out of order"


# --- damage --------------------------------------------------------------------------------------


def part_of(version):
    return next(f for f in sorted(version.iterdir()) if f.name not in ("DONE", "manifest.json"))


def truncate(version, _):
    file = part_of(version)
    file.write_bytes(file.read_bytes()[:-7])
    return file.name


def flip(version, _):
    file = part_of(version)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 0x10
    file.write_bytes(data)
    return file.name


def remove(version, _):
    file = part_of(version)
    file.unlink()
    return file.name


def flip_manifest(version, _):
    text = (version / "manifest.json").read_text()
    (version / "manifest.json").write_text(text.replace('"digest"', '"digets"'))
    return "manifest.json"


def swap_part(version, other):
    file = part_of(version)
    shutil.copy(part_of(other), file)
    return file.name


def swap_version(version, other):
    shutil.rmtree(version)
    shutil.copytree(other, version)
    return "belongs to run"


def drop_done(version, _):
    (version / "DONE").unlink()
    return "(3 is not there)"


@pytest.fixture
def published(work, rng):
    """Five versions, and the same version numbers of another run."""
    history = make_run(work / "run", rng, 5)
    make_run(work / "other", np.random.default_rng(5), 5)
    job, other = Files(work, **{"anchors.first": "false"}), Files(work / "2")
    ok(*job.trainer("--replay", work / "run"))
    ok(*other.trainer("--replay", work / "other"))
    job.history, job.other = history, other
    return job


DAMAGE = [truncate, flip, remove, flip_manifest, swap_part, swap_version, drop_done]


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_version_is_refused_by_name(published, work, damage):
    """Rollouts take the versions before it, refuse it, and continue after a repair."""
    job, version = published, published.version_dir(3)
    shutil.copytree(version, work / "kept")
    word = damage(version, job.other.version_dir(3))
    job.set(**{"receiver.target": "checkpoint", "receiver.checkpoint_dir": work / "local"})
    job.set(**{"deadlines.fetch": "600ms"})
    line = job.rollout("--base", work / "run/step_000000")
    begin = time.monotonic()
    result = run(*line)
    assert_refusal(result, (3, 4), "2" if damage is drop_done else "3", word)
    assert time.monotonic() - begin < 30
    # Complete versions before it are taken, but not if it belongs to another run.
    reached = 0 if damage is swap_version else 2
    assert state_version(work / "local") == reached
    assert read_checkpoint(work / "local") == job.history[reached]
    shutil.rmtree(version)
    shutil.copytree(work / "kept", version)
    ok(*line)
    assert read_checkpoint(work / "local") == job.history[5]


@pytest.mark.parametrize("damage", [truncate, flip, remove, drop_done])
def test_a_version_repaired_in_time_is_taken(published, work, damage):
    """Within deadlines.fetch, without a restart."""
    job, version = published, published.version_dir(3)
    shutil.copytree(version, work / "kept")
    damage(version, job.other.version_dir(3))
    base = ["--base", work / "run/step_000000", "--save", work / "save"]
    rollout = job.start_rollout(*base, "--set", "deadlines.fetch=240s")
    time.sleep(0.5)
    assert rollout.poll() is None
    for file in (work / "kept").iterdir():
        shutil.copy(file, version / file.name)
    assert ended(rollout)["version"] == 5
    assert read_checkpoint(work / "save/rollout_00") == job.history[5]


def test_foreign_files_beside_the_versions_change_nothing(published, work):
    job = published
    (job.dir / "weight_v7").mkdir()
    (job.dir / "weight_v000099").write_text("a file")
    (job.dir / "weight_v000098").mkdir()
    (job.dir / ".weight_v000009.x.tmp").mkdir()
    (job.version_dir(2) / "notes.txt").write_text("not in the manifest")
    (job.dir / ".receivers").mkdir()
    (job.dir / ".receivers/stray.json").write_text("{")
    ok(*job.rollout("--base", work / "run/step_000000", "--save", work / "save"))
    assert read_checkpoint(work / "save/rollout_00") == job.history[5]


def test_a_second_trainer_on_the_same_directory(work, rng):
    history = make_run(work / "run", rng, 2)
    job = Files(work)
    first = job.start_trainer("--replay", work / "run", "--rollouts", 1)
    wait_for((job.dir / "run.json").exists, "the first trainer")
    begin = time.monotonic()
    second = run(*job.trainer("--replay", work / "run"))
    assert_refusal(second, 6, str(job.dir), "another publisher")
    assert time.monotonic() - begin < 60
    ended(job.start_rollout("--save", work / "save"))
    assert ended(first)["ok"]
    assert read_checkpoint(work / "save/rollout_00") == history[2]


def test_receivers_that_come_and_go_do_not_delay_the_trainer(work, rng):
    make_run(work / "run", rng, 2)
    job = Files(work, **{"deadlines.connect": "2s"})
    (job.dir / ".receivers").mkdir(parents=True)
    trainer = job.start_trainer("--replay", work / "run", "--rollouts", 1)
    over = time.monotonic() + 60
    beat = 0
    while trainer.poll() is None and time.monotonic() < over:
        file = job.dir / ".receivers/stray.json"
        beat += 1
        proof = f"{beat:032x}"
        report = {"id": "stray", "version": beat % 2, "proof": proof, "beat": beat}
        file.with_suffix(".tmp").write_text(json.dumps(report))
        file.with_suffix(".tmp").rename(file)
        time.sleep(0.1)
        file.unlink(missing_ok=True)  # a new run removes older reports
        time.sleep(0.05)
    assert trainer.poll() is not None, "the trainer waits as long as reports come and go"


# --- full disks ----------------------------------------------------------------------------------


@contextlib.contextmanager
def small_disk(path, kilobytes):
    path.mkdir()
    line = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "driftless-test", str(path)]
    mounted = subprocess.run(line, capture_output=True, text=True)
    if mounted.returncode != 0:
        pytest.skip(f"a small tmpfs cannot be mounted: {mounted.stderr.strip()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


def fill(disk, leave_kilobytes):
    """Writes a file that leaves so much room."""
    free = shutil.disk_usage(disk).free
    (disk / "ballast").write_bytes(b"\0" * (free - leave_kilobytes * 1024))
    return disk / "ballast"


def test_a_disk_that_is_full_for_the_trainer(work, rng):
    history = make_run(work / "run", rng, 6, rows=4000, fraction=0.2)
    with small_disk(work / "disk", 4096) as disk:
        job = Files(work / "disk", **{"anchors.first": "false"})
        ok(*job.trainer("--replay", work / "run", "--steps", 2))
        ballast = fill(disk, 8)
        failed = run(*job.trainer("--replay", work / "run", "--json"))
        assert failed.returncode == 5, failed.stderr
        assert failed.stderr.count("driftless: ") == 1 and "no_space" in failed.stderr
        assert "weight_v000003" in failed.stderr
        assert not job.version_dir(3).exists()
        ballast.unlink()
        ok(*job.trainer("--replay", work / "run"))
        ok(*job.rollout("--base", work / "run/step_000000", "--save", work / "save"))
    assert read_checkpoint(work / "save/rollout_00") == history[6]


def test_a_disk_that_is_full_for_a_rollout(work, rng):
    history = make_run(work / "run", rng, 2, rows=4000, fraction=0.2)
    job = Files(work)
    ok(*job.trainer("--replay", work / "run", "--steps", 1))
    with small_disk(work / "disk", 4096) as disk:
        job.set(**{"receiver.target": "checkpoint", "receiver.checkpoint_dir": disk / "local"})
        line = job.rollout("--base", work / "run/step_000000")
        ok(*line)
        ok(*job.trainer("--replay", work / "run"))
        ballast = fill(disk, 8)
        assert_refusal(run(*line), 5, "no_space")
        assert read_checkpoint(disk / "local") == history[1]
        ballast.unlink()
        ok(*line)
        assert read_checkpoint(disk / "local") == history[2]


# --- clocks --------------------------------------------------------------------------------------


@pytest.fixture
def clocks(work):
    """Environments in which the calendar time comes from a file that the test can change."""
    if shutil.which("faketime") is None:
        pytest.skip("there is no faketime (Debian package faketime)")
    shown = subprocess.run(["faketime", "-m", "-f", "+0", "env"], capture_output=True, text=True)
    (preload,) = [s for s in shown.stdout.splitlines() if s.startswith("LD_PRELOAD=")]

    def clock(name, moment):
        (work / name).write_text(moment + "\n")
        return {
            **environment(),
            "LD_PRELOAD": preload.split("=", 1)[1],
            "FAKETIME_TIMESTAMP_FILE": str(work / name),
            "FAKETIME_NO_CACHE": "1",
            # The monotonic clock, which deadlines use, cannot be turned back.
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }

    return clock


def created_at(version):
    return json.loads((version / "manifest.json").read_text())["created"]


def test_clocks_that_go_backwards(work, rng, clocks):
    """Between processes, and while they run: no result depends on the calendar."""
    history = make_run(work / "run", rng, 20)
    job = Files(work, **{"keep_versions": 4, "anchors.every": 5, "road.patience": "1s"})
    first = ["--replay", work / "run", "--steps", 8, "--interval-ms", 20]
    ended(job.start_trainer(*first, env=clocks("a", "+40d")))
    created = [created_at(job.version_dir(8))]
    replay = ["--replay", work / "run", "--rollouts", 1, "--interval-ms", 80]
    job.hold(12, 16)
    trainer = job.start_trainer(*replay, env=clocks("c", "+1d"))
    wait_for(lambda: not (job.dir / "closed.json").exists(), "the run to be open again")
    rollout = job.start_rollout("--save", work / "save", env=clocks("b", "-3y"))
    for version, trainer_says, rollout_says in ((11, "-400d", "+5y"), (15, "-800d", "-5y")):
        wait_for(job.version_dir(version).exists, f"version {version}")
        created.append(created_at(job.version_dir(version)))
        (work / "b").write_text(rollout_says + "\n")
        (work / "c").write_text(trainer_says + "\n")
        job.go(version + 1)
    assert ended(rollout)["version"] == 20
    assert ended(trainer)["ok"]
    assert read_checkpoint(work / "save/rollout_00") == history[20]
    created.append(created_at(job.version_dir(20)))
    assert len(set(created)) == 4 and created == sorted(created, reverse=True), "not backwards"
