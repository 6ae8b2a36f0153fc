# SPDX-License-Identifier: Apache-2.0
"""A trainer succeeds only if the rollouts that it waited for hold its last version: its exit code
and closing line, with rollouts that come, leave or never appear."""

import json
import os
import shutil
import signal
import time
from functools import partial

import pytest

import jobs
from jobs import Files, finish, make_run, wait_for
from support import COMMAND, assert_refusal, read_checkpoint, run


@pytest.fixture(autouse=True)
def no_processes_left():
    yield
    jobs.stop_started()


def last_line(result):
    return json.loads(result.stdout.splitlines()[-1])


def following(job, *arguments):
    """Starts a rollout, and waits for its first report."""
    before = set((job.dir / ".receivers").glob("*.json"))
    rollout = job.start_rollout(*arguments)
    receivers = job.dir / ".receivers"
    wait_for(lambda: set(receivers.glob("*.json")) - before, "a rollout's report")
    return rollout


def write_report(job, name, version, proof, needs=""):
    """Writes a report as a receiver does."""
    output = {"id": name, "version": version, "proof": proof, "needs": needs, "beat": time.time_ns()}
    (job.dir / ".receivers").mkdir(exist_ok=True)
    (job.dir / ".receivers/new").write_text(json.dumps(output))
    (job.dir / ".receivers/new").rename(job.dir / f".receivers/{name}.json")


# --- the rollouts that a trainer waits for --------------------------------------------------------


def test_a_trainer_without_any_rollout_reports_that_none_followed(work, rng):
    make_run(work / "run", rng, 2)
    job = Files(work, **{"deadlines.connect": "2s"})
    result = run(*job.trainer("--replay", work / "run"))
    assert result.returncode == 0, result.stderr
    assert "No receiver followed" in result.stdout and "All rollouts" not in result.stdout
    shutil.rmtree(job.dir)
    result = run(*job.trainer("--replay", work / "run", "--rollouts", 1))
    assert result.returncode == 1, result.stdout + result.stderr
    assert "1 of 1 rollout never came" in result.stderr and "All rollouts" not in result.stdout


def test_a_rollout_whose_newest_report_is_of_no_version_does_not_count(work, rng):
    """A rollout reports this after a restart under its id, or if a failed commit was not undone."""
    make_run(work / "run", rng, 2)
    job = Files(work, **{"deadlines.connect": "6s"})
    arguments = ["--replay", work / "run", "--rollouts", 2]
    trainer = jobs.start([COMMAND, *map(str, job.trainer(*arguments))])
    wait_for(job.dir.exists, "the road")
    base = ["--base", work / "run/step_000000"]
    late = following(job, "--set", "receiver.id=late", *base)
    late.send_signal(signal.SIGSTOP)
    done = following(job, "--set", "receiver.id=anew", "--target-version", 2, *base)
    assert finish(done).returncode == 0
    path = job.dir / ".receivers/anew.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"version": 0, "proof": ""}))
    late.send_signal(signal.SIGCONT)
    assert finish(late).returncode == 0
    result = finish(trainer)
    assert result.returncode == 1 and "All rollouts" not in result.stdout, result.stdout
    assert "anew does not hold version 2" in result.stderr


def test_a_rollout_that_was_killed_is_named_and_one_that_signed_off_is_not_waited_for(work, rng):
    make_run(work / "run", rng, 12)
    job = Files(work, **{"deadlines.connect": "6s"})
    job.hold(12)
    arguments = ["--replay", work / "run"]
    trainer = jobs.start([COMMAND, *map(str, job.trainer(*arguments))])
    wait_for(job.version_dir(1).exists, "version 1")
    left = following(job, "--set", "receiver.id=left")
    dead = following(job, "--set", "receiver.id=dead")
    steady = following(job, "--set", "receiver.id=steady")
    left.send_signal(signal.SIGTERM)  # signs off
    dead.send_signal(signal.SIGKILL)
    job.go(12)
    result = finish(trainer)
    assert result.returncode == 1, result.stdout + result.stderr
    assert "NOT all rollouts" in result.stdout
    assert "driftless trainer.0: still waiting after 5 s: dead is at version" in result.stderr
    assert "last version: dead is at version" in result.stderr
    assert "left" not in result.stderr and "steady" not in result.stderr
    assert "signed off" in next(line for line in result.stdout.splitlines() if "left " in line)
    assert finish(steady).returncode == 0
    assert finish(left).returncode == 128 + signal.SIGTERM


def test_all_rollouts_that_stay_hold_the_last_version(work, rng):
    history = make_run(work / "run", rng, 6)
    job = Files(work)
    job.hold(6)
    trainer = job.start_trainer("--replay", work / "run")
    wait_for(job.version_dir(1).exists, "version 1")
    rollout = following(job, "--set", "receiver.id=r", "--save", work / "save")
    job.go(6)
    result = finish(trainer)
    assert result.returncode == 0, result.stderr
    (known,) = last_line(result)["rollouts"]
    assert known["id"] == "r" and known["version"] == 6
    assert known["holds_last"] and not known["unproven"] and not known["signed_off"]
    assert finish(rollout).returncode == 0
    assert read_checkpoint(work / "save/rollout_00") == history[6]


@pytest.mark.parametrize("digest", ["the version's", "another"])
def test_a_holder_that_cannot_prove_it_counts_and_is_named(work, rng, digest):
    make_run(work / "run", rng, 2)
    job = Files(work, **{"deadlines.connect": "3s"})
    arguments = ["--replay", work / "run", "--rollouts", 1]
    trainer = jobs.start([COMMAND, *map(str, job.trainer(*arguments))])
    wait_for((job.dir / "run.json").exists, "the announcement")
    report = partial(write_report, job, "engine")
    report(0, "")
    wait_for((job.dir / "weight_v000002/manifest.json").exists, "version 2")
    manifest = json.loads((job.dir / "weight_v000002/manifest.json").read_text())
    proof = manifest["digest"] if digest == "the version's" else "0" * 32
    report(2, f"{proof} unproven=2 run={manifest['run']}")
    result = finish(trainer)
    if digest == "another":
        assert result.returncode == 1 and "engine reported another digest" in result.stderr
        return
    assert result.returncode == 0, result.stderr
    assert "engine: 2 tensors unproven" in result.stdout.splitlines()[-1]


@pytest.mark.parametrize("version, proof", [(2, "f" * 32 + " run=" + "e" * 32), (0, "")])
def test_a_report_of_an_earlier_run_does_not_count(work, rng, version, proof):
    make_run(work / "run", rng, 2)
    job = Files(work, **{"deadlines.connect": "2s"})
    (job.dir / ".receivers").mkdir(parents=True)
    output = {"id": "old", "version": version, "proof": proof, "needs": "", "beat": 7}
    (job.dir / ".receivers/old.json").write_text(json.dumps(output))
    result = run(*job.trainer("--replay", work / "run", "--json"))
    assert result.returncode == 0, result.stderr + result.stdout
    assert last_line(result)["rollouts"] == []


def test_a_rollout_that_still_follows_an_earlier_run_does_not_count(work, rng):
    """It keeps reporting into the directory that the next run uses."""
    make_run(work / "run", rng, 3)
    job = Files(work)
    assert run(*job.trainer("--replay", work / "run")).returncode == 0
    (job.dir / "closed.json").unlink()
    old = following(job, "--set", "receiver.id=old", "--base", work / "run/step_000000")
    for path in job.dir.iterdir():
        if path.name != ".receivers":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    make_run(work / "other", rng, 2)
    result = run(*job.trainer("--replay", work / "other", "--interval-ms", 1500, "--json"))
    assert result.returncode == 0, result.stderr + result.stdout
    assert last_line(result)["rollouts"] == []
    old.kill()


@pytest.mark.parametrize("reports", ["holds nothing", "asks for an anchor"])
def test_a_report_of_an_earlier_run_without_a_proof_does_not_count(work, rng, reports):
    make_run(work / "run", rng, 2)
    job = Files(work, **{"anchors.first": "false", "deadlines.connect": "4s"})
    assert run(*job.trainer("--replay", work / "run")).returncode == 0
    (job.dir / "closed.json").unlink()
    old = following(job, "--set", "receiver.id=old")  # starts without a base
    path = job.dir / ".receivers/old.json"
    if reports == "asks for an anchor":
        wait_for(lambda: json.loads(path.read_text())["proof"] == "anchor wanted", "its wish")
    report = json.loads(path.read_text())
    old.kill()
    shutil.rmtree(job.dir)
    make_run(work / "other", rng, 2)
    trainer = job.start_trainer("--replay", work / "other", "--interval-ms", 300)
    wait_for((job.dir / "run.json").exists, "the announcement")
    proof = report["proof"] if reports == "asks for an anchor" else ""
    write_report(job, "old", 0, proof, report["needs"])
    result = finish(trainer)
    assert result.returncode == 0, result.stderr
    assert last_line(result)["rollouts"] == []


def test_a_rollout_whose_wrong_weights_were_replaced_counts(work, rng):
    make_run(work / "run", rng, 1)
    job = Files(work)
    trainer = jobs.start([COMMAND, *map(str, job.trainer("--replay", work / "run", "--rollouts", 1))])
    wait_for((job.dir / "run.json").exists, "the announcement")
    write_report(job, "engine", 0, "")
    manifest_path = job.dir / "weight_v000001/manifest.json"
    wait_for(manifest_path.exists, "version 1")
    manifest = json.loads(manifest_path.read_text())
    write_report(job, "engine", 1, f"{'0' * 32} run={manifest['run']}")
    output = ""
    while "engine reported another digest" not in output:
        output = trainer.stderr.readline()
        assert output, "it ended"
    write_report(job, "engine", 1, f"{manifest['digest']} run={manifest['run']}")
    result = finish(trainer)
    assert result.returncode == 0, result.stderr
    assert "different" not in result.stdout and "All rollouts ended" in result.stdout


# --- runs in the same directory -------------------------------------------------------------------


def test_a_replay_is_not_taken_for_the_run_that_is_there(work, rng):
    """Same base, same number of versions, other weights."""
    make_run(work / "run", rng, 3)
    make_run(work / "other", rng, 3)
    shutil.rmtree(work / "other/step_000000")
    shutil.copytree(work / "run/step_000000", work / "other/step_000000")
    job = Files(work)
    assert run(*job.trainer("--replay", work / "run")).returncode == 0
    again = run(*job.trainer("--replay", work / "run"))  # the same run has been published already
    assert again.returncode == 0, again.stderr
    for arguments in (["--replay", work / "other"], ["--replay", work / "run", "--steps", 2]):
        refused = run(*job.trainer(*arguments))
        assert_refusal(refused, 7, "version 3 of run", "another run", "road.shared_fs.dir")
    assert [path.name for path in sorted(job.dir.glob("weight_v*"))][-1] == "weight_v000003"
    ended = run(*job.rollout("--base", work / "run/step_000000", "--timeout", "20s"))
    assert ended.returncode == 0, f"the refused trainer reopened the run: {ended.stderr}"


# --- a missing directory --------------------------------------------------------------------------


def test_a_directory_that_was_mistyped_is_not_made(work, rng):
    make_run(work / "run", rng, 1)
    base = ["--base", work / "run/step_000000"]
    for layout in ("flush", "hf_delta", "frames", "trl"):
        job = Files(work, **{"road.layout": layout, "encoding": "auto", "deadlines.connect": "1s"})
        job.set(**{"road.shared_fs.dir": work / "unmounted/weights"})
        refused = run(*job.trainer("--replay", work / "run"))
        assert_refusal(refused, 3, str(work / "unmounted/weights"), "mistyped, or not mounted?")
        refused = run(*job.rollout(*base))
        assert_refusal(refused, 6, str(work / "unmounted/weights"), "mistyped, or not mounted?")
        if layout in ("hf_delta", "trl"):  # layouts of foreign trainers
            job.set(**{"road.shared_fs.foreign_base": work / "run/step_000000"})
            refused = run(*job.rollout(*base))
            assert_refusal(refused, 6, str(work / "unmounted/weights"), "mistyped, or not mounted?")
    assert not (work / "unmounted").exists()


def test_trainers_that_write_one_file_together_do_not_make_it_either(work, rng):
    make_run(work / "run", rng, 1)
    job = jobs.Job(work, "hdf5")
    job.settings += ["--set", f"road.shared_fs.dir={work}/unmounted/weights"]
    result = job.run(["--replay", work / "run"])
    assert result.returncode == 3 and "mistyped, or not mounted?" in result.stderr, result.stderr
    assert not (work / "unmounted").exists()


def test_a_trainer_makes_the_last_directory_and_reports_it(work, rng):
    make_run(work / "run", rng, 1)
    job = Files(work)
    result = run(*job.trainer("--replay", work / "run"))
    assert result.returncode == 0 and f"made the directory {job.dir}" in result.stdout
    assert "made the directory" not in run(*job.trainer("--replay", work / "run")).stdout


def test_a_rollout_that_loses_its_directory_does_not_make_it_again(work, rng):
    make_run(work / "run", rng, 2)
    job = Files(work, **{"receiver.id": "r"})
    assert run(*job.trainer("--replay", work / "run")).returncode == 0
    (job.dir / "closed.json").unlink()
    rollout = following(job, "--base", work / "run/step_000000")
    job.dir.rename(work / "away")
    with pytest.raises(AssertionError):
        wait_for(job.dir.exists, "the directory, which must not be made", seconds=2.5)
    rollout.kill()


def test_other_places_that_were_mistyped_are_not_made(work, rng):
    make_run(work / "run", rng, 1)
    steps = [work / "run/step_000000", work / "run/step_000001"]
    refused = run("diff", *steps, "--out", work / "unmounted/out")
    assert_refusal(refused, 3, str(work / "unmounted/out"), "mistyped, or not mounted?")
    job = Files(work, **{"receiver.target": "checkpoint"})
    job.set(**{"receiver.checkpoint_dir": work / "unmounted/local"})
    refused = run(*job.rollout("--base", steps[0]))
    assert_refusal(refused, 3, str(work / "unmounted"), "mistyped, or not mounted?")
    assert not (work / "unmounted").exists()


# --- readers of metrics ---------------------------------------------------------------------------


@pytest.mark.parametrize("role", ["trainer", "rollout"])
def test_a_closed_metrics_pipe_ends_no_process(work, rng, role):
    """Without care, SIGPIPE would end the process."""
    history = make_run(work / "run", rng, 8)
    job = Files(work)
    os.mkfifo(work / "pipe")
    reader = os.open(work / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    piped = ["--set", f"metrics.file={work}/pipe"]
    replay = ["--replay", work / "run", "--rollouts", 1, "--interval-ms", 100]
    job.hold(8)
    rollout = job.start_rollout("--save", work / "save", *(piped if role == "rollout" else []))
    trainer = job.start_trainer(*replay, *(piped if role == "trainer" else []))
    wait_for(job.version_dir(3).exists, "version 3")
    os.close(reader)
    job.go(8)
    ended = {"trainer": finish(trainer), "rollout": finish(rollout)}
    assert [each.returncode for each in ended.values()] == [0, 0], ended
    assert read_checkpoint(work / "save/rollout_00") == history[8]
    text = ended[role].stdout + ended[role].stderr
    assert text.count("lines are lost") == 1 and "the job goes on" in text, text
