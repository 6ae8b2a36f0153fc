# SPDX-License-Identifier: Apache-2.0
"""Faults around training, and what must hold then."""

import signal
import statistics

import jobs
from megatron_jobs import GATHERED, Job, ended

import tiny_config

READ = """
def look(directory, version):
    with open({log!r}, "a") as file:
        print(directory, version, file=file)
"""
PUSH = """
import pathlib

def fail(args, directory, engines):
    raise RuntimeError("the hook says no")

def fail_second(args, directory, engines):
    here = pathlib.Path(directory)
    visible = sorted(path.name for path in here.parent.glob("weight_v*"))
    if visible:
        try:  # only on the first rank; the other may not get here
            pathlib.Path({log!r} + ".failed").touch(exist_ok=False)
        except FileExistsError:
            pass
        else:
            raise RuntimeError("the hook says no")
    try:
        files = any(here.iterdir())
    except FileNotFoundError:  # the other rank's hook has failed
        files = False
    with open({log!r}, "a") as log:
        log.write(" ".join([here.name.split(".")[1], str(files), *visible]) + "\\n")
"""


def config_of(job):
    return tiny_config.hf_config(job.job)


def test_a_skipped_step_publishes_nothing_and_full_mode_sends_everything(work):
    """In fp16 Megatron skips a step with infinite gradients. Under mpirun, over files: the
    publishers agree by MPI, and ranks without a part are bystanders."""
    job = Job(work, tp=2, pp=2, dtype="float16", steps=5, poison=[2, 4])
    job.over_disk("--update-weight-mode", "full", "--update-weights-interval", "2", road="full",
                  outside_mpi=True, rollouts=("full0",))  # fmt: skip
    full = job.start_disk_rollouts("full0")
    job.over_disk("--update-weight-delta-encoding", "xor", outside_mpi=False, rollouts=("disk0",))
    rollouts = full + job.start_disk_rollouts("disk0")
    result = job.run()
    assert result.stdout.count("successful False") == 2
    assert [(v["label"], v["version"]) for v in job.versions(1)] == [
        ("step1", 1),
        ("step3", 2),
        ("step5", 3),
    ]
    assert [(v["label"], v["version"], v["encoding"]) for v in job.versions(0)] == [
        ("step3", 1, "full")
    ]
    ended(*rollouts)
    job.check(0, ["full0"], config_of(job))
    job.check(1, ["disk0"], config_of(job))
    assert (
        job.road / "weight_v000001/model.safetensors.index.json"
    ).exists()  # in the requested layout


def test_a_restart_from_a_checkpoint_continues_the_run(work):
    """The first run dies two steps after its checkpoint. The second one brings the rollouts back to
    the checkpoint's weights, and then forward."""
    first = Job(work, tp=2, pp=2, steps=4, save_at=2, die=True)
    first.over_disk(rollouts=("disk0",))
    follower = first.start_disk_rollouts("disk0")
    assert jobs.finish(first.start(), 600).returncode != 0
    before = first.versions()
    saved = first.expected("step2", config_of(first))
    first.check(0, ["disk0"], config_of(first))

    (work / "second").mkdir()
    second = Job(work / "second", tp=2, pp=2, steps=2, load=str(work / "checkpoint"), load_step=2)
    second.over_disk(rollouts=("disk1",), road="../road")
    rollouts = second.start_disk_rollouts("disk1")
    second.run()
    ended(*rollouts, *follower)
    after = second.versions()
    assert [(v["label"], v["version"]) for v in after] == [("start", 5), ("step1", 6), ("step2", 7)]
    second.check(0, ["disk1"], config_of(second))
    # The same holds for a rollout that ran all the time.
    assert first.rollout("disk0", 7)["digest"] == after[-1]["digest"]
    # The restart begins with the version of the checkpoint's step, not of a later one.
    assert after[0]["digest"] == before[1]["digest"] != before[3]["digest"]
    restored = second.expected("start", config_of(second))
    assert all((restored[name] == saved[name]).all() for name in saved)


def test_killed_and_slow_rollouts_delay_no_other_process(work):
    """On both pull roads: a slow rollout, and one that is killed and restarted."""
    slow_s = 3.0
    job = Job(work, pp=2, steps=6)
    job.over_rma(*GATHERED, rollouts=(), slow_s=slow_s)
    job.over_disk(rollouts=())
    killed = job.start_disk_rollouts("killed", die_at=2)[0]
    slow = job.start_disk_rollouts("slow", slow_s=slow_s)[0]
    training = job.start(rma_rollouts=1, trainers=2)
    assert killed.wait(600) == -signal.SIGKILL
    again = job.start_disk_rollouts("again")[0]
    ended(training, slow, again)
    versions = job.versions(0) + job.versions(1)
    assert len(versions) == 12
    # Not the longest: on a busy machine any single version may take its time.
    assert statistics.median(v["ms"] for v in versions) < slow_s * 1000 / 2, versions
    # All end at the last version.
    for session, name in ((0, "rma2"), (1, "slow"), (1, "again")):
        last = job.versions(session)[-1]
        assert job.rollout(name, 6)["digest"] == last["digest"]


def test_a_failing_update_is_reported_every_time_and_does_not_change_training(work):
    (work / "push.py").write_text(PUSH.format(log=str(work / "pushes")))
    job = Job(work, tp=2, pp=2, steps=4, break_at=[3])
    (work / "read.py").write_text(READ.format(log=str(work / "reads")))
    job.over_disk("--custom-delta-pre-push-path", f"{work}/push.py:fail_second", rollouts=())
    flags = job.job["sessions"][0]["flags"]
    rollouts = job.start_disk_rollouts(
        "disk0", flags=[*flags, "--custom-delta-pre-read-path", f"{work}/read.py:look"]
    )
    result = job.run()
    ended(*rollouts)
    # The second step's hook fails, so nothing of it is published. The third step's version fails on
    # both publishing ranks because one of them fails.
    # the other rank may find its files removed before that
    assert "the hook says no" in result.stderr
    assert result.stderr.count("(1 so far)") == 2, result.stderr
    assert result.stderr.count("broken on purpose") == 2
    assert "2 so far" in result.stderr
    assert [v["label"] for v in job.versions()] == ["step1", "step4"], result.stderr
    last = job.versions()[-1]
    assert last["version"] == 2
    # On both ranks, with the files written, and before the version is visible.
    pushed = (work / "pushes").read_text().split("\n")[:-1]
    first, other = "weight_v000001 True", "weight_v000002 True weight_v000001"
    gone = "weight_v000002 False weight_v000001"  # in a rank's hook, after the other's has failed
    assert set(pushed) - {gone} == {"anchor_v000000 True", first, other}
    assert pushed.count(first) >= 2 and pushed.count(other) >= 2
    # The hook ran before each version that the rollout read.
    read = (work / "reads").read_text().split("\n")[:-1]
    assert set(read) >= {f"{job.road} {n}" for n in (1, 2)}
    weights = job.expected("step4", config_of(job))
    assert job.rollout("disk0", 2)["digest"] == last["digest"]

    (work / "off").mkdir()
    off = Job(work / "off", tp=2, pp=2, steps=4, sessions=[{"flags": []}])
    assert "driftless" not in off.run().stdout
    plain = off.expected("step4", config_of(off))
    assert all((plain[name] == weights[name]).all() for name in plain)


def test_strict_ends_training_on_all_ranks(work):
    (work / "push.py").write_text(PUSH.format(log=str(work / "pushes")))
    job = Job(work, pp=2, steps=4)
    job.over_disk("--custom-delta-pre-push-path", f"{work}/push.py:fail", "--update-weight-strict",
                  rollouts=())  # fmt: skip
    process = job.start(trainers=2)
    out, err = process.communicate(timeout=600)
    assert process.returncode != 0
    assert "the hook says no" in err and "step 1" not in out
