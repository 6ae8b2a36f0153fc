# SPDX-License-Identifier: Apache-2.0
"""The main job under faults of processes: killed, stopped, stalled. After each fault the weights
are a committed version, the job continues or ends with one clear error in time, and restarted
processes catch up. test_fault_files.py has faults of files; docs/operate/faults.md lists all
faults."""

import collections
import json
import os
import random
import shutil
import signal
import time

import pytest
import xxhash

from jobs import (
    PATIENCE_S,
    Files,
    Job,
    ended,
    finish,
    make_run,
    mpirun_line,
    need_mpirun,
    start,
    stop,
    stop_started,
    wait_for,
)
from support import COMMAND, assert_refusal, ok, read_checkpoint, run, state_version

# Many kills hit every moment, and the test checks that; a few kills only show that none does harm.
FOLLOWER_KILLS = [9, pytest.param(40, marks=pytest.mark.long)]
TRAINER_KILLS = [9, pytest.param(45, marks=pytest.mark.long)]


@pytest.fixture(autouse=True)
def nothing_stays():
    yield
    stop_started()


def kill(process):
    process.kill()
    process.communicate()


def check_whole(path):
    """Checks with an independent reader that a visible version has all of its files."""
    manifest = (path / "manifest.json").read_bytes()
    assert (path / "DONE").read_text() == xxhash.xxh3_128_hexdigest(manifest) + "\n"
    for file in json.loads(manifest)["files"]:
        data = (path / file["name"]).read_bytes()
        assert len(data) == file["size_bytes"], file
        assert xxhash.xxh3_128_hexdigest(data) == file["xxh3_128"], file


def visible(directory):
    return sorted(directory.glob("weight_v*")) + sorted(directory.glob("anchor_v*"))


# --- kill -9 -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kills", FOLLOWER_KILLS)
@pytest.mark.parametrize("road", ["flush", "hf_delta"])
def test_a_checkpoint_rollout_killed_at_any_moment(work, rng, road, kills):
    """While fetching, staging or committing: the checkpoint holds a version, or a journal of
    one."""
    # Versions larger than half of a fold, so that each gets a commit of its own.
    history = make_run(work / "run", rng, 12, rows=40000, fraction=0.2)
    job = Files(work, road, **{"receiver.id": "r", "receiver.fold_size": "1MiB"})
    ok(*job.trainer("--replay", work / "run"))
    job.set(**{"receiver.target": "checkpoint", "receiver.checkpoint_dir": work / "local"})
    base = ["--base", work / "run/step_000000"]
    sync = work / "local/.weight_sync"
    moments, hits = random.Random(7), collections.Counter()
    for number in range(kills):
        process = job.start_rollout(*base)
        name = ("", "journal.tmp", "journal")[number % 3]
        if name:  # staging, committing
            while process.poll() is None and not (sync / name).exists():
                pass
            time.sleep(moments.uniform(0, 0.002))
        else:
            time.sleep(moments.uniform(0, 0.1))
        kill(process)
        if not (work / "local").exists():
            hits["copying the base"] += 1
            continue
        if (sync / "journal").exists():
            hits["committing"] += 1
        else:
            hits["staging" if (sync / "journal.tmp").exists() else "between"] += 1
            assert read_checkpoint(work / "local") == history[state_version(work / "local")]
        # After a restart it holds a version before it takes the next one.
        found = json.loads(ok(*job.rollout(*base, "--json", "--target-version", 0)))["version"]
        assert read_checkpoint(work / "local") == history[found]
        if found == 12:
            shutil.rmtree(work / "local")
    print(f"killed while: {dict(hits)}")
    if kills >= 40:
        assert min(hits["between"], hits["staging"], hits["committing"]) >= 3, hits
    last = ended(job.start_rollout(*base, "--save", work / "save"))
    assert last["version"] == 12
    assert read_checkpoint(work / "local") == history[12]
    assert read_checkpoint(work / "save/rollout_00") == history[12]


def test_a_memory_rollout_killed_while_the_trainer_goes_on(work, rng):
    history = make_run(work / "run", rng, 40, rows=2000)
    job = Files(work, **{"receiver.id": "r"})
    job.hold(37)
    trainer = job.start_trainer("--replay", work / "run", "--rollouts", 1, "--interval-ms", 60)
    moments = random.Random(8)
    kills = 0
    while kills < 5 or not job.version_dir(36).exists():
        rollout = job.start_rollout("--base", work / "run/step_000000", "--verbose")
        time.sleep(moments.uniform(0.01, 0.4))
        kill(rollout)
        kills += 1
    job.go(37)
    last = ended(job.start_rollout("--base", work / "run/step_000000", "--save", work / "save"))
    assert last["version"] == 40
    assert read_checkpoint(work / "save/rollout_00") == history[40]
    assert ended(trainer)["ok"]


@pytest.mark.parametrize("kills", TRAINER_KILLS)
def test_a_trainer_killed_at_any_moment(work, rng, kills):
    """Before, during and after sealing: only complete versions are visible, and the run
    continues."""
    steps = 60
    history = make_run(work / "run", rng, steps, rows=6000)
    job = Files(work, **{"anchors.every": 4, "receiver.id": "r", "buffer_size": "64KiB"})
    replay = ["--replay", work / "run", "--rollouts", 1]
    rollout = job.start_rollout("--save", work / "save", "--verbose")
    moments, hits = random.Random(9), collections.Counter()
    for number in range(kills):
        before = len(list(job.dir.glob("weight_v*")))
        if before >= steps - 2:
            break
        trainer = job.start_trainer(*replay, "--interval-ms", moments.choice((0, 5, 50)))
        if number % 3 == 0:
            while trainer.poll() is None and not list(job.dir.glob(".weight_v*")):
                pass
            time.sleep(moments.uniform(0, 0.003))
        else:
            time.sleep(moments.uniform(0, (0.03, 0.12)[number % 3 - 1]))
        kill(trainer)
        hidden = list(job.dir.glob(".weight_v*")) + list(job.dir.glob(".anchor_v*"))
        published = len(list(job.dir.glob("weight_v*"))) > before
        hits["within" if hidden else "after" if published else "before"] += 1
        for path in visible(job.dir):
            check_whole(path)
    print(f"killed: {dict(hits)}")
    if kills >= 45:
        assert min(hits["before"], hits["within"], hits["after"]) >= 3, hits
    assert rollout.poll() is None, "a trainer that dies does not end the rollout"
    assert ended(job.start_trainer(*replay))["ok"]
    assert ended(rollout)["version"] == steps
    assert read_checkpoint(work / "save/rollout_00") == history[steps]
    assert not list(job.dir.glob(".*.tmp")), "the next trainer removed the rests of the killed ones"


# --- sleeping, stalling --------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["memory", "checkpoint"])
@pytest.mark.parametrize("patience", ["300ms", "10min"])
def test_a_rollout_that_sleeps_for_ten_versions(work, rng, target, patience):
    """The trainer keeps its versions within road.patience; after that it takes an anchor."""
    history = make_run(work / "run", rng, 24)
    job = Files(work, **{"keep_versions": 3, "anchors.every": 4, "road.patience": patience})
    if target == "checkpoint":
        job.set(**{"receiver.target": target, "receiver.checkpoint_dir": work / "local"})
    rollout = job.start_rollout("--base", work / "run/step_000000", "--save", work / "save")
    job.hold(5)
    trainer = job.start_trainer("--replay", work / "run", "--rollouts", 1, "--interval-ms", 60)
    wait_for(job.version_dir(4).exists, "version 4")
    stop(rollout)
    job.go(5)
    wait_for(job.version_dir(16).exists, "version 16")
    held = job.version_dir(6).exists()
    rollout.send_signal(signal.SIGCONT)
    assert held == (patience == "10min"), "the versions that it needs next"
    result = finish(rollout)
    assert result.returncode == 0, result.stderr
    last = json.loads(result.stdout.splitlines()[-1])
    assert last["version"] == 24 and (last["anchors"] == 0) == held
    assert ended(trainer)["ok"]
    assert read_checkpoint(work / "save/rollout_00") == history[24]


def test_a_rollout_arrives_at_a_last_version_that_was_cut_short(work, rng):
    """It requests an anchor, which the trainer makes before it ends."""
    history = make_run(work / "run", rng, 2)
    job = Files(work, **{"anchors.first": "false", "deadlines.fetch": "2s"})
    job.hold(2)
    trainer = job.start_trainer("--replay", work / "run", "--rollouts", 1)
    wait_for((job.dir / "run.json").exists, "the announcement")
    base = ["--base", work / "run/step_000000"]
    rollout = job.start_rollout("--save", work / "save", *base)
    receivers = job.dir / ".receivers"
    wait_for(lambda: any('"version":1' in p.read_text() for p in receivers.glob("*.json")), "1")
    stop(rollout)
    job.go(2)
    wait_for((job.version_dir(2) / "DONE").exists, "version 2")
    for part in job.version_dir(2).glob("*.safetensors"):
        os.truncate(part, part.stat().st_size // 2)
    rollout.send_signal(signal.SIGCONT)
    assert ended(rollout)["version"] == 2
    assert read_checkpoint(work / "save/rollout_00") == history[2]
    result = finish(trainer)
    assert result.returncode == 0, result.stderr


def test_a_rollout_without_weights_gets_the_anchor_that_it_requests(work, rng):
    """It gets one anchor: a rollout that died after its request does not make all versions full
    ones."""
    history = make_run(work / "run", rng, 20)
    job = Files(work, **{"anchors.first": "false", "anchors.every": 0,
                         "anchors.by_size": "false"})  # fmt: skip
    job.set(**{"deadlines.connect": "2s"})
    trainer = job.start_trainer("--replay", work / "run", "--interval-ms", 60)
    wait_for(job.version_dir(2).exists, "version 2")
    asking = job.start_rollout("--set", "receiver.id=dead")
    wait_for(lambda: list(job.dir.glob("anchor_v*")), "an anchor")
    kill(asking)
    rollout = job.start_rollout("--set", "receiver.id=r", "--save", work / "save")
    assert ended(rollout)["version"] == 20
    assert finish(trainer).returncode == 1, "the dead rollout was there, and did not follow"
    assert read_checkpoint(work / "save/rollout_00") == history[20]
    assert len(list(job.dir.glob("anchor_v*"))) <= 2


def test_a_before_read_hook_that_takes_its_time(work, rng):
    """Longer than one poll of the rollout, shorter than hook_timeout."""
    history = make_run(work / "run", rng, 3)
    job = Files(work, **{"road.shared_fs.before_read": "sleep 0.4"})
    trainer = job.start_trainer("--replay", work / "run", "--rollouts", 1, "--interval-ms", 700)
    assert ended(job.start_rollout("--save", work / "save"))["version"] == 3
    assert ended(trainer)["ok"]
    assert read_checkpoint(work / "save/rollout_00") == history[3]


def test_a_before_read_hook_that_stalls(work, rng):
    """At the start or later: one error that names it, soon after hook_timeout."""
    make_run(work / "run", rng, 2)
    job = Files(work)
    job.hold(2)
    stall = f"test ! -e {work}/stall || sleep 600"
    job.set(**{"road.shared_fs.before_read": stall})
    trainer = job.start_trainer("--replay", work / "run", "--rollouts", 1)
    job.set(**{"road.shared_fs.hook_timeout": "2s"})
    rollout = job.start_rollout("--base", work / "run/step_000000")
    wait_for(lambda: list(job.dir.glob(".receivers/*.json")), "the rollout")
    (work / "stall").touch()
    job.go(2)
    begin = time.monotonic()
    assert_refusal(finish(rollout), 5, "before_read", "2000 ms")
    assert_refusal(run(*job.rollout()), 5, "before_read", "2000 ms")
    assert time.monotonic() - begin < 60
    (work / "stall").unlink()
    job.set(**{"road.shared_fs.hook_timeout": "1min"})
    ended(job.start_rollout("--base", work / "run/step_000000", "--set", "receiver.id=again"))
    finish(trainer)  # it still counts the rollout that ended


def test_an_after_publish_hook_that_stalls(work, rng):
    """The version is visible all the same; the trainer reports the hook and continues."""
    history = make_run(work / "run", rng, 3)
    job = Files(work, **{"road.shared_fs.hook_timeout": "2s", "anchors.first": "false"})
    hook = 'case "$DRIFTLESS_VERSION_DIR" in *2) sleep 600;; esac'
    job.set(**{"road.shared_fs.after_publish": hook})
    begin = time.monotonic()
    lines = ok(*job.trainer("--replay", work / "run", "--json")).splitlines()
    assert time.monotonic() - begin < 60
    versions = [e for e in map(json.loads, lines) if e["event"] == "version"]
    assert [v["version"] for v in versions] == [1, 2, 3]
    assert [len(v["notes"]) for v in versions] == [0, 1, 0]
    note = versions[1]["notes"][0]
    assert "is published, but" in note and "after_publish" in note and "2000 ms" in note
    ended(job.start_rollout("--base", work / "run/step_000000", "--save", work / "save"))
    assert read_checkpoint(work / "save/rollout_00") == history[3]


# --- under mpirun --------------------------------------------------------------------------------


def two_ranks(job, shell, *arguments):
    """Two trainers under mpirun; a shell command runs before the second one."""
    need_mpirun()
    trainer = [COMMAND, *map(str, job.trainer(*arguments))]
    line = mpirun_line((1, job.trainer(*arguments)))
    return start([*line, ":", "-n", "1", "sh", "-c", f'{shell}; exec "$@"', "sh", *trainer])


def test_one_of_two_publisher_ranks_that_cannot_write(work, rng):
    history = make_run(work / "run", rng, 3, rows=4000, fraction=0.2)
    job = Files(work, **{"anchors.first": "false"})
    # Files are limited to 1 KiB: a larger write fails, as on a disk that is full for this rank
    # only.
    failing = two_ranks(job, 'trap "" XFSZ; ulimit -f 1', "--replay", work / "run")
    result = finish(failing)
    assert result.returncode == 5, result.stderr
    lines = [s for s in result.stderr.splitlines() if s.startswith("driftless: ")]
    assert lines and all("rank 1" in line for line in lines), result.stderr
    assert not list(job.dir.glob("weight_v*"))
    assert finish(two_ranks(job, ":", "--replay", work / "run")).returncode == 0
    ok(*job.rollout("--base", work / "run/step_000000", "--save", work / "save"))
    assert read_checkpoint(work / "save/rollout_00") == history[3]


def test_one_of_two_publisher_ranks_that_stops(work, rng):
    """The other rank waits no longer than deadlines.publish, and names the stopped one."""
    steps = 12  # the last ones are not published before it stops
    history = make_run(work / "run", rng, steps)
    job = Files(work, **{"anchors.first": "false", "deadlines.publish": "3s"})
    job.set(**{"deadlines.connect": "1s"})
    replay = ["--replay", work / "run"]
    failing = two_ranks(job, f"echo $$ > {work}/pid", *replay, "--interval-ms", 400)
    wait_for(job.version_dir(2).exists, "version 2")
    begin = time.monotonic()
    os.kill(int((work / "pid").read_text()), signal.SIGSTOP)
    result = finish(failing)
    assert time.monotonic() - begin < 60
    assert result.returncode == 6 and "rank 1" in result.stderr, result.stderr
    again = finish(two_ranks(job, ":", *replay, "--set", "deadlines.publish=60s"))
    assert again.returncode == 0, again.stderr
    ok(*job.rollout("--base", work / "run/step_000000", "--save", work / "save"))
    assert read_checkpoint(work / "save/rollout_00") == history[steps]


@pytest.mark.parametrize("road", ["flush", "mpi_rma"])
@pytest.mark.parametrize("role", ["trainer", "rollout"])
def test_a_process_of_an_mpirun_job_that_is_killed(work, rng, road, role):
    """mpirun ends the job; after a restart it continues from the files, or starts anew without
    them."""
    need_mpirun()
    history = make_run(work / "run", rng, 8)
    job = Job(work, road)
    trainer = [COMMAND, *map(str, job.trainer("--replay", work / "run", "--interval-ms", 500))]
    rollout = [COMMAND, *map(str, job.rollout("--save", job.save, "--json", "--verbose"))]
    parts = [["-n", "1", *trainer], ["-n", "1", *trainer], ["-n", "1", *rollout]]
    watched = {"trainer": 1, "rollout": 2}[role]
    shell = ["sh", "-c", f'echo $$ > {work}/pid; exec "$@"', "sh"]
    parts[watched][2:2] = shell
    mpirun = ["mpirun", "--oversubscribe", "--bind-to", "none"]
    line = [*mpirun, *parts[0], ":", *parts[1], ":", *parts[2]]
    process = start(line)
    with process.stdout as lines:
        while '"version":2' not in lines.readline():
            assert process.poll() is None
        os.kill(int((work / "pid").read_text()), signal.SIGKILL)
        process.wait(PATIENCE_S)
    process.stderr.close()
    assert process.returncode != 0
    again = finish(start(line))
    assert again.returncode == 0, again.stderr
    assert read_checkpoint(job.save / "rollout_00") == history[8]
