# SPDX-License-Identifier: Apache-2.0
"""Every rank publishes what its optimizer writes, while versions fail or other code writes weights:
the rollouts hold the trainer's weights."""

import jobs
import pytest
from megatron_jobs import Job, assert_same, ended

import tiny_config

FAIL = """
import pathlib

def once(args, directory, engines):
    with open({log!r}, "a") as log:
        log.write(directory + "\\n")
    if "weight_v000002" in directory:
        try:  # only on the first rank
            pathlib.Path({log!r} + ".failed").touch(exist_ok=False)
        except FileExistsError:
            return
        raise RuntimeError("the hook says no")
"""
NONE = ("--update-weight-snapshot", "none")


def config_of(job):
    return tiny_config.hf_config(job.job)


def test_skipped_steps_failed_versions_and_foreign_writes(work):
    """In fp16, where Megatron skips a step with infinite gradients. The version of step 3 fails in
    the hook. After step 4 a checkpoint of step 1 is loaded. After step 6 a parameter is edited
    through `.data`, which torch does not count: the version that detects it, in the background,
    fails."""
    (work / "push.py").write_text(FAIL.format(log=str(work / "pushes")))
    job = Job(
        work, tp=2, dtype="float16", lr=2e-7, steps=8, poison=[2], save_at=1, reload_at=4, edit_at=6
    )
    job.over_disk(*NONE, "--custom-delta-pre-push-path", f"{work}/push.py:once",
                  rollouts=("disk0",), layout="frames")  # fmt: skip
    rollouts = job.start_disk_rollouts("disk0")
    result = job.run()
    ended(*rollouts)
    assert result.stdout.count("successful False") == 1
    assert "the hook says no" in result.stderr
    versions = job.versions()
    assert "down_proj.weight' was written without capture()" in result.stderr
    steps = ["step1", "step4", "step5", "step6", "step8"]
    assert [v["label"] for v in versions] == steps, result.stderr
    job.check(0, ["disk0"], config_of(job))
    by_step = {v["label"]: v for v in versions}
    # Only the foreign writes are sent whole; all other changes were captured.
    assert [by_step[s]["resent"] for s in ("step4", "step6")] == [0, 0], versions
    assert by_step["step5"]["resent"] > 10
    edited = [n for n in by_step["step8"]["notes"] if "without capture" in n]
    assert edited and all("model.layers.0.mlp.down_proj.weight" in n for n in edited), edited


def test_several_steps_become_one_version(work):
    job = Job(work, tp=2, steps=5)
    job.over_disk(*NONE, "--update-weights-interval", "2", rollouts=("disk0",), layout="frames")
    rollouts = job.start_disk_rollouts("disk0")
    job.run()
    ended(*rollouts)
    assert [v["label"] for v in job.versions()] == ["step2", "step4"]
    assert all(v["resent"] == 0 for v in job.versions()[1:])
    job.check(0, ["disk0"], config_of(job))


def test_parameters_that_qk_clip_edits_are_watched(work):
    """They are compared with a copy, so that edits after the step are found."""
    job = Job(work, tp=2, steps=4, clip=True)
    job.over_disk(*NONE, rollouts=("disk0",), layout="frames")
    rollouts = job.start_disk_rollouts("disk0")
    job.run()
    ended(*rollouts)
    versions = job.versions()
    assert [v["version"] for v in versions] == [1, 2, 3, 4]
    assert not any("without capture" in note for v in versions for note in v["notes"])
    job.check(0, ["disk0"], config_of(job))


def test_training_continues_while_a_version_is_made(work):
    """No step waits for a version: the rollout holds those versions that it received."""
    job = Job(work, tp=2, steps=6, background=True)
    job.over_disk(*NONE, rollouts=(), layout="frames")
    rollouts = job.start_disk_rollouts("disk0")
    result = job.run()
    ended(*rollouts)
    seen = sorted(int(path.name[-6:]) for path in (work / "acks").glob("disk0_*"))
    assert seen[-1] == 6, result.stderr
    for version in filter(None, seen):
        found = job.rollout("disk0", version)["tensors"]
        assert_same(found, job.expected(f"step{version}", config_of(job)), f"version {version}")
    assert result.stdout.count("ms added to the step, visible after") == 6


def test_moved_parameters_fail_every_version_with_a_message(work):
    """The memory at their old addresses is no longer trained."""
    job = Job(work, tp=2, steps=4, move_at=2)
    job.over_disk(*NONE, rollouts=("disk0",), layout="frames")
    rollouts = job.start_disk_rollouts("disk0")
    result = job.run()
    ended(*rollouts)
    assert [v["label"] for v in job.versions()] == ["step1", "step2"]
    assert "decoder.final_layernorm.weight was at" in result.stderr
    assert "ended at version 2, 2 weight updates failed" in result.stdout
    job.check(0, ["disk0"], config_of(job))


def test_updates_continue_after_another_attach(work):
    """The session before leaves the run open, and fails no further step."""
    strict = ("--update-weight-strict",)
    job = Job(work, tp=2, steps=4, move_at=2, attach_at=2)
    job.over_disk(*NONE, *strict, rollouts=("disk0",), layout="frames")
    rollouts = job.start_disk_rollouts("disk0")
    result = job.run()
    ended(*rollouts)
    assert "failed" not in result.stderr, result.stderr
    versions = job.versions()
    assert [v["label"] for v in versions] == ["step1", "step2", "step3", "step4"]
    job.check(0, ["disk0"], config_of(job))


@pytest.mark.long
def test_a_job_of_mpirun_is_not_attached_again(work):
    job = Job(work, tp=2, steps=2, attach_at=1)
    job.over_disk(*NONE, rollouts=(), layout="frames", outside_mpi=False)
    result = jobs.finish(job.start(), 240)
    assert result.returncode != 0
    assert "an MPI launcher started this job: it cannot be joined twice" in result.stderr


def test_a_restart_from_a_checkpoint_continues_the_run(work):
    first = Job(work, tp=2, steps=3, save_at=1, die=True)
    first.over_disk(*NONE, rollouts=("disk0",), layout="frames")
    follower = first.start_disk_rollouts("disk0")
    assert jobs.finish(first.start(), 240).returncode != 0
    first.check(0, ["disk0"], config_of(first))

    (work / "second").mkdir()
    second = Job(work / "second", tp=2, steps=2, load=str(work / "checkpoint"), load_step=1)
    second.over_disk(*NONE, rollouts=("disk1",), road="../road", layout="frames")
    rollouts = second.start_disk_rollouts("disk1")
    second.run()
    ended(*rollouts, *follower)
    after = second.versions()
    assert [(v["label"], v["version"]) for v in after] == [("start", 4), ("step1", 5), ("step2", 6)]
    second.check(0, ["disk1"], config_of(second))
    assert first.rollout("disk0", 6)["digest"] == after[-1]["digest"]


@pytest.mark.parametrize(
    "job, reason",
    [
        ({"foreign_optimizer": True}, "the optimizer Foreign is not known"),
        ({"dtype": "float32"}, "a parameter of type torch.float32 is written in place"),
    ],
    ids=["foreign", "fp32"],
)
def test_other_optimizers_use_the_source_ranks(work, job, reason):
    job = Job(work, tp=2, steps=2, **job)
    job.over_disk(rollouts=("disk0",), layout="frames")
    rollouts = job.start_disk_rollouts("disk0")
    result = job.run()
    ended(*rollouts)
    assert "gathers its tensors and compares them with a snapshot" in result.stdout
    assert result.stdout.count(reason) == 1
    assert all(v["publishers"] == 1 for v in job.versions())
    job.check(0, ["disk0"], config_of(job))
