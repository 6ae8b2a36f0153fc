# SPDX-License-Identifier: Apache-2.0
"""Every rank publishes what its optimizer writes, and something goes wrong, or writes weights
otherwise: what the rollouts hold is what the trainer holds."""

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
        try:  # on the rank that comes first
            pathlib.Path({log!r} + ".failed").touch(exist_ok=False)
        except FileExistsError:
            return
        raise RuntimeError("the hook says no")
"""
NONE = ("--update-weight-snapshot", "none")


def config_of(job):
    return tiny_config.hf_config(job.job)


def test_skipped_steps_failed_versions_and_weights_written_by_others(work):
    """In fp16, where Megatron skips a step of infinite gradients. The version of step 3 fails in
    the hook; after step 4 a checkpoint of step 1 is loaded, after step 6 a parameter is edited
    through `.data`: torch does not count that, and the version that finds it, behind the step, fails."""
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
    # What capture() saw is what there is, but for what others wrote.
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


def test_what_qk_clip_edits_is_watched(work):
    """It is compared with a copy of its own, so that an edit after the step is no surprise."""
    job = Job(work, tp=2, steps=4, clip=True)
    job.over_disk(*NONE, rollouts=("disk0",), layout="frames")
    rollouts = job.start_disk_rollouts("disk0")
    job.run()
    ended(*rollouts)
    versions = job.versions()
    assert [v["version"] for v in versions] == [1, 2, 3, 4]
    assert not any("without capture" in note for v in versions for note in v["notes"])
    job.check(0, ["disk0"], config_of(job))


def test_training_goes_on_while_a_version_is_made(work):
    """Nobody waits for a version before the next step: the rollout has those that it saw."""
    job = Job(work, tp=2, steps=6, behind=True)
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


def test_parameters_that_were_moved_fail_every_version_and_say_so(work):
    """What lies where they were is no more what is trained."""
    job = Job(work, tp=2, steps=4, move_at=2)
    job.over_disk(*NONE, rollouts=("disk0",), layout="frames")
    rollouts = job.start_disk_rollouts("disk0")
    result = job.run()
    ended(*rollouts)
    assert [v["label"] for v in job.versions()] == ["step1", "step2"]
    assert "decoder.final_layernorm.weight was at" in result.stderr
    assert "ended at version 2, 2 weight updates failed" in result.stdout
    job.check(0, ["disk0"], config_of(job))


def test_updates_go_on_once_they_are_attached_again(work):
    """The session before ends without a word to the rollouts, and fails no further step."""
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


def test_a_restart_from_a_checkpoint_goes_on_with_the_run(work):
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
def test_other_optimizers_go_over_the_source_ranks(work, job, reason):
    job = Job(work, tp=2, steps=2, **job)
    job.over_disk(rollouts=("disk0",), layout="frames")
    rollouts = job.start_disk_rollouts("disk0")
    result = job.run()
    ended(*rollouts)
    assert "gathers its tensors and compares them with a snapshot" in result.stdout
    assert result.stdout.count(reason) == 1
    assert all(v["publishers"] == 1 for v in job.versions())
    job.check(0, ["disk0"], config_of(job))
