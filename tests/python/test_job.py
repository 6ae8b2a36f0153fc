# SPDX-License-Identifier: Apache-2.0
"""The main job with real processes: on every road, every rollout ends with the trainer's bits."""

import json
import signal
import subprocess
import time
from pathlib import Path

import pytest

from jobs import (
    ROADS,
    Job,
    environment,
    events,
    finish,
    make_run,
    mpirun_line,
    need_mpirun,
    start,
)
from support import (
    COMMAND,
    assert_refusal,
    ok,
    read_checkpoint,
    run,
)

FILES = [road for road in ROADS if road != "mpi_rma"]


def assert_saved(job, weights, rollouts=2):
    for number in range(rollouts):
        assert read_checkpoint(job.save / f"rollout_{number:02d}") == weights


@pytest.fixture(params=ROADS)
def job(work, request):
    return Job(work, request.param)


def test_rollouts_end_with_the_trainers_bits(job, work, rng):
    history = make_run(work / "run", rng, 5)
    result = job.run(
        ["--replay", work / "run", "--interval-ms", 20], ["--base", work / "run/step_000000"]
    )
    assert result.returncode == 0, result.stderr + result.stdout
    found = events(result)
    assert [v["version"] for v in found["version"]] == [1, 2, 3, 4, 5]
    for version in found["version"]:
        assert version["changed_units"] > 0 and version["wire_bytes"] > 0
        assert {"ratio", "density", "total_ms", "process_ms"} <= version.keys()
    (summary,) = found["summary"]
    assert summary["ok"] and summary["version"] == 5 and len(summary["rollouts"]) == 2
    assert {r["digest"] for r in found["rollout"]} == {summary["digest"]}
    assert_saved(job, history[5])
    assert (job.save / "rollout_00/config.json").read_text() == '{"model_type": "test"}\n'


# MPI's numbers of its thread levels.
LEVELS = {"single": 0, "funneled": 1, "serialized": 2}


def worse_mpi(**settings):
    """mpirun's options that make the installed MPI appear less capable."""
    library = Path(COMMAND).parent / "libworse_mpi.so"
    if not library.exists():
        pytest.skip(f"{library} is not there: it is built with the tests")
    options = ["-x", f"LD_PRELOAD={library}"]
    for name, value in settings.items():
        options += ["-x", f"DRIFTLESS_TEST_MPI_{name}={value}"]
    return options


@pytest.mark.parametrize("level", LEVELS)
def test_a_job_without_mpi_thread_multiple(job, work, rng, level):
    options = worse_mpi(THREADS=level)  # ends a process that violates the level
    # Several buckets, threads and anchors: with MPI_THREAD_MULTIPLE, threads other than the first
    # would call MPI.
    history = make_run(work / "run", rng, 6, rows=1 << 14, fraction=0.1)
    job.settings += ["--set", "buffer_size=64KiB", "--set", "anchors.every=3"]
    job.threads = 2
    result = job.run(
        ["--replay", work / "run", "--interval-ms", 20],
        ["--base", work / "run/step_000000"],
        options=options,
    )
    assert result.returncode == 0, result.stderr + result.stdout
    assert result.stderr.count(f"worse_mpi: asked for 3, has {LEVELS[level]}") == 4
    (summary,) = events(result)["summary"]
    assert summary["ok"] and summary["version"] == 6
    assert {r["digest"] for r in events(result)["rollout"]} == {summary["digest"]}
    assert_saved(job, history[6])


def test_rollouts_without_a_base_start_from_the_first_anchor(job, work, rng):
    history = make_run(work / "run", rng, 3)
    result = job.run(["--replay", work / "run"])
    assert result.returncode == 0, result.stderr + result.stdout
    assert all(r["anchors"] >= 1 for r in events(result)["rollout"])
    assert_saved(job, history[3])


@pytest.mark.parametrize("mode", ["delta", "full"])
def test_old_versions_are_removed_and_late_rollouts_still_follow(work, mode):
    """By default, old versions are removed, and an anchor replaces them."""
    (work / "job.yaml").write_text(f"mode: {mode}\nroad: {{ kind: shared_fs, shared_fs: {{ dir: {work}/weights }} }}\n")
    made = run("trainer", "--config", work / "job.yaml", "--params", 100000, "--steps", 60,
               "--lr", 1e-3)  # fmt: skip
    assert made.returncode == 0, made.stderr
    steps = sorted(path.name for path in (work / "weights").glob("weight_v*"))
    anchors = sorted(path.name for path in (work / "weights").glob("anchor_v*"))
    assert steps[-1] == "weight_v000060" and len(steps) < 60 and anchors, (steps, anchors)
    if mode == "full":
        assert len(steps) + len(anchors) <= 8, (steps, anchors)
    late = run("rollout", "--config", work / "job.yaml", "--json")
    assert late.returncode == 0, late.stderr
    ended = json.loads(late.stdout.splitlines()[-1])
    assert ended["version"] == 60 and ended["anchors"] == 1


def test_a_made_up_run_of_more_versions_than_are_kept(work):
    job = Job(work, "mpi_rma")
    result = job.run(["--params", 100000, "--steps", 120], trainers=1, rollouts=3)
    assert result.returncode == 0, result.stderr + result.stdout
    (summary,) = events(result)["summary"]
    assert summary["version"] == 120 and len(summary["rollouts"]) == 3
    first = read_checkpoint(job.save / "rollout_00")
    assert first == read_checkpoint(job.save / "rollout_02")


def test_a_replay_of_more_than_256_steps(work, rng):
    history = make_run(work / "run", rng, 3)
    for step in range(4, 301):
        (work / f"run/step_{step:06d}").symlink_to(work / f"run/step_{step % 4:06d}")
    job = Job(work, "mpi_rma")
    result = job.run(["--replay", work / "run"])
    assert result.returncode == 0, result.stderr + result.stdout
    assert events(result)["summary"][0]["version"] == 300
    assert_saved(job, history[0])


def test_a_checkpoint_directory_as_target(work, rng):
    history = make_run(work / "run", rng, 3)
    job = Job(work, "hf_delta")
    job.settings += ["--set", "receiver.target=checkpoint"]
    job.settings += ["--set", f"receiver.checkpoint_dir={work}/local_{{rank}}"]
    result = job.run(["--replay", work / "run"], ["--base", work / "run/step_000000"])
    assert result.returncode == 0, result.stderr + result.stdout
    assert_saved(job, history[3])
    assert read_checkpoint(work / "local_1") == history[3]


def test_full_mode_and_other_encodings(work, rng):
    history = make_run(work / "run", rng, 2)
    for number, settings in enumerate([["mode=full"], ["encoding=indices"], ["encoding=deltas_zstd"]]):
        job = Job(work / str(number), "mpi_rma")
        for setting in settings:
            job.settings += ["--set", setting]
        result = job.run(["--replay", work / "run"])
        assert result.returncode == 0, result.stderr + result.stdout
        assert_saved(job, history[2])


def test_rollouts_that_mpirun_did_not_start(work, rng):
    history = make_run(work / "run", rng, 4)
    job = Job(work, "flush")
    base = ["--base", work / "run/step_000000", "--json"]
    last = start([COMMAND, *map(str, job.rollout(*base, "--save", work / "a"))])
    early = start(
        [COMMAND, *map(str, job.rollout(*base, "--save", work / "b", "--target-version", 2))]
    )
    trainer = ["--replay", work / "run", "--rollouts", 1, "--interval-ms", 300, "--json"]
    result = run(*job.trainer(*trainer))
    assert result.returncode == 0, result.stderr + result.stdout
    assert finish(last).returncode == 0
    assert read_checkpoint(work / "a/rollout_00") == history[4]
    ended = finish(early)
    assert ended.returncode == 0, ended.stderr
    version = json.loads(ended.stdout.splitlines()[-1])["version"]
    assert version >= 2
    assert read_checkpoint(work / "b/rollout_00") == history[version]
    # The run has ended: a late rollout catches up and ends.
    ok(*job.rollout("--save", work / "c", "--timeout", "240s"))
    assert read_checkpoint(work / "c/rollout_00") == history[4]


def test_a_restarted_trainer_continues_its_run(work, rng):
    history = make_run(work / "run", rng, 4)
    job = Job(work, "hf_delta")
    replay = ["--replay", work / "run", "--json"]
    first = [json.loads(line) for line in ok(*job.trainer(*replay, "--steps", 2)).splitlines()]
    second = [json.loads(line) for line in ok(*job.trainer(*replay)).splitlines()]
    assert [e["version"] for e in first if e["event"] == "version"] == [1, 2]
    assert [e["version"] for e in second if e["event"] == "version"] == [3, 4]
    ok(*job.rollout("--save", job.save, "--base", work / "run/step_000000", "--timeout", "240s"))
    assert_saved(job, history[4], rollouts=1)


def test_metrics_have_a_line_per_version_and_process(work, rng):
    make_run(work / "run", rng, 3)
    job = Job(work, "mpi_rma")
    job.settings += ["--set", f"metrics.file={work}/{{role}}_{{rank}}.jsonl"]
    assert job.run(["--replay", work / "run"]).returncode == 0
    for rank in range(2):
        lines = [json.loads(s) for s in (work / f"trainer_{rank}.jsonl").read_text().splitlines()]
        assert [line["version"] for line in lines] == [1, 2, 3]
        assert all(line["rank"] == rank and line["manifest_publish_ms"] >= 0 for line in lines)
        for line in lines:
            for stage in ("compare_ms", "encode_ms", "send_ms"):
                assert 0 < line[stage] <= line["process_ms"], (stage, line)
            assert 0 < line["seal_ms"] <= line["manifest_publish_ms"]
        lines = [json.loads(s) for s in (work / f"rollout_{rank}.jsonl").read_text().splitlines()]
        assert lines[-1]["version"] == 3
        times = {"fetch_ms", "stage_ms", "pause_ms", "apply_ms", "resume_ms"}
        assert all(times <= line.keys() for line in lines)


def test_the_text_of_a_job(work, rng):
    need_mpirun()
    make_run(work / "run", rng, 2)
    job = Job(work, "mpi_rma")
    line = mpirun_line((1, job.trainer("--replay", work / "run")), (1, job.rollout("--verbose")))
    result = finish(start(line))
    assert result.returncode == 0, result.stderr
    assert "publish ms" in result.stdout and "rollout_00: version 2" in result.stdout
    assert "All rollouts ended at version 2" in result.stdout


# --- refusals ------------------------------------------------------------------------------------


def test_a_wrong_setting_is_one_line_and_exit_2(work):
    job = Job(work, "mpi_rma")
    for command in (job.trainer, job.rollout):
        assert_refusal(run(*command("--set", "road.knd=mpi_rma")), 2, "road.kind")
        assert_refusal(run(*command("--set", "road.kind=loopback")), 2, "loopback")
    assert_refusal(run("trainer", "--config", work / "none.yaml"), 3, "none.yaml")
    assert_refusal(run(*job.rollout("--timeout", "soon")), 2, "--timeout")


def first_refusal(result, code, *words):
    """The first line on stderr: mpirun adds its own text after ours."""
    assert result.returncode == code, f"exit {result.returncode}: {result.stderr}"
    lines = [line for line in result.stderr.splitlines() if line.startswith("driftless: ")]
    assert lines and all(word in lines[0] for word in words), result.stderr


def test_one_failing_process_ends_the_job_with_its_code(work, rng):
    make_run(work / "run", rng, 2)
    make_run(work / "other", rng, 2)
    replay = ["--replay", work / "run"]
    job = Job(work, "mpi_rma")
    first_refusal(job.run(["--replay", work / "none"]), 3, "trainer", "none")
    first_refusal(job.run(replay, ["--base", work / "none"]), 3, "rollout", "none")
    first_refusal(job.run(replay, ["--base", work / "other/step_000000"]), 4, "another base")
    first_refusal(job.run([*replay, "--steps", 9]), 3, "--steps", "step_000003")


def test_processes_with_different_configurations_report_that(work, rng):
    need_mpirun()
    make_run(work / "run", rng, 1)
    job = Job(work, "flush")
    other = Job(work, "hf_delta")
    line = mpirun_line((1, job.trainer("--replay", work / "run")), (1, other.rollout()))
    first_refusal(finish(start(line)), 2, "road.layout")


def test_a_rollout_that_never_comes_is_named_within_the_deadline(work, rng):
    make_run(work / "run", rng, 1)
    job = Job(work, "flush")
    line = job.trainer("--replay", work / "run", "--rollouts", 1, "--set", "deadlines.connect=1s")
    assert_refusal(run(*line), 1, "deadlines.connect", "1 of 1")


@pytest.mark.parametrize(
    "call, word", [("MPI_Init_thread", "MPI_Init"), ("MPI_Win_allocate_shared", "making mpi_rma")]
)
def test_an_mpi_call_that_does_not_come_back(work, call, word):
    job = Job(work, "mpi_rma")
    job.settings = ["--set", "deadlines.connect=2s"]
    temporary = work / "tmp"
    temporary.mkdir()
    options = [*worse_mpi(HANGS=call), "-x", f"TMPDIR={temporary}"]
    result = job.run(["--params", 100000, "--steps", 2], options=options)
    first_refusal(result, 6, "deadlines.connect", word, "2000 ms")
    assert not list(temporary.glob("driftless-*"))


def test_a_process_of_the_job_that_never_calls_mpi(work, rng):
    need_mpirun()
    make_run(work / "run", rng, 1)
    job = Job(work, "mpi_rma")
    job.settings = ["--set", "deadlines.connect=2s"]
    line = mpirun_line((1, job.trainer("--replay", work / "run")))
    result = finish(start([*line, ":", "-n", "1", "sleep", "60"]))
    first_refusal(result, 6, "deadlines.connect", "MPI_Init", "2000 ms")


def test_a_rollout_without_a_trainer_gives_up(work):
    job = Job(work, "flush")
    result = run(*job.rollout("--set", "deadlines.connect=500ms"))
    assert result.returncode in (3, 6), result.stderr


def test_a_trainer_that_gets_a_signal_finishes_and_reports_it(work, rng):
    make_run(work / "run", rng, 3)
    for step in range(4, 200):
        (work / f"run/step_{step:06d}").symlink_to(work / f"run/step_{step % 4:06d}")
    job = Job(work, "flush")
    replay = ["--replay", work / "run", "--interval-ms", 50, "--rollouts", 1]
    rollout = start([COMMAND, *map(str, job.rollout("--json"))])
    trainer = start([COMMAND, *map(str, job.trainer(*replay, "--json"))])
    while not (job.dir / "weight_v000003").exists():
        time.sleep(0.02)
    trainer.send_signal(signal.SIGTERM)
    stopped = finish(trainer)
    assert stopped.returncode == 128 + signal.SIGTERM, stopped.stderr
    ended = finish(rollout)
    assert ended.returncode == 0, ended.stderr
    last = json.loads(stopped.stdout.splitlines()[-1])
    assert json.loads(ended.stdout.splitlines()[-1])["digest"] == last["digest"]


def test_nothing_is_left_behind_when_a_job_is_killed(work):
    need_mpirun()
    job = Job(work, "mpi_rma")
    (work / "tmp").mkdir()
    line = mpirun_line(
        (1, job.trainer("--params", 100000, "--steps", 16, "--interval-ms", 5000)),
        (1, job.rollout()),
    )
    process = subprocess.Popen(
        list(map(str, line)), env={**environment(), "TMPDIR": f"{work}/tmp"},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    until = time.monotonic() + 300
    while not list((work / "tmp").glob("driftless-*/run/step_000016")):
        assert time.monotonic() < until and process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    assert process.wait(300) != 0
    assert not list((work / "tmp").glob("driftless-*"))
