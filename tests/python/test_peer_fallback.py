# SPDX-License-Identifier: Apache-2.0
"""The fallback of the peer road, between real processes: each cause, and kills on the way."""

import json
import random
import shutil
import signal
import socket
import time

import pytest
from jobs import ended, finish, make_run, stop_started, wait_for
from support import changed, read_checkpoint, write_checkpoint
from test_peer import Peers, versions

STEPS = 5
P2P = "[P2P] "


@pytest.fixture(autouse=True)
def processes():
    yield
    stop_started()


class Job(Peers):
    """A trainer and rollouts over the peer road, with a directory as its fallback."""

    def __init__(self, work):
        super().__init__(work, "tcp")
        self.set(**{"road.peer.fallback": "shared_fs", "road.shared_fs.dir": self.dir})
        self.set(**{"deadlines.publish": "20s"})

    def train(self, *arguments):
        return self.start_trainer(
            "--replay", self.work / "run", "--set", f"metrics.file={self.work}/trainer.jsonl", *arguments
        )

    def roll_out(self, name, *arguments):
        return self.start_rollout(
            *["--base", self.work / "run/step_000000", "--save", self.work / name],
            *["--set", f"receiver.id={name}", "--set", f"metrics.file={self.work}/{name}.jsonl", *arguments],
        )


@pytest.fixture
def job(work):
    return Job(work)


def records(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def switch_lines(result):
    return [line for line in result.stderr.splitlines() if P2P in line]


def settle(job, history, trainer, rollouts, reason, steps=STEPS):
    """Asserts that all processes end with the trainer's bits, read from files, and that each has
    reported the fallback once."""
    results = [finish(process) for process in [trainer, *rollouts.values()]]
    for result in results:
        assert result.returncode == 0, result.stderr + result.stdout
        (line,) = switch_lines(result)
        assert line.endswith("; using shared_fs instead."), line
    assert reason in switch_lines(results[0])[0], results[0].stderr
    for name in rollouts:
        assert read_checkpoint(job.work / name / "rollout_00") == history[steps]
    return results


def test_all_versions_go_by_files_if_the_hubs_port_is_taken(job, work, rng):
    history = make_run(work / "run", rng, STEPS)
    port = next(s for s in job.settings if str(s).startswith("hub.address=")).rsplit(":", 1)[1]
    with socket.create_server(("127.0.0.1", int(port))):
        trainer = job.train("--interval-ms", 100, "--rollouts", 1)
        rollouts = {"one": job.roll_out("one")}
        settle(job, history, trainer, rollouts, "127.0.0.1:" + port)
    assert all(r["fallback"] == "shared_fs" for r in records(work / "trainer.jsonl"))
    assert all(r["fallback"] == "shared_fs" for r in records(work / "one.jsonl"))


def test_all_versions_go_by_files_if_the_trainer_has_no_token(job, work, rng):
    history = make_run(work / "run", rng, STEPS)
    job.token.unlink()
    trainer = job.train("--interval-ms", 100, "--rollouts", 1)
    settle(job, history, trainer, {"one": job.roll_out("one")}, str(job.token))


def test_a_version_larger_than_the_ring_and_all_later_ones_go_by_files(job, work, rng):
    """First deltas, peer to peer; then a dense version; a rollout that joins afterwards; and a
    restart of the trainer."""
    history = make_run(work / "run", rng, 2, rows=4096)
    for step, weights in enumerate(dense_steps(rng, history[-1], work / "run", 3), 3):
        assert step == len(history)
        history.append(weights)
    job.set(**{"road.ring_size": "128KiB", "anchors.first": "false", "anchors.every": "0"})
    trainer = job.train("--interval-ms", 300, "--rollouts", 2, "--steps", 4)
    early = {name: job.roll_out(name) for name in ("one", "two")}
    wait_for(lambda: 3 in versions(work / "trainer.jsonl"), "the first version by files")
    early["late"] = job.roll_out("late")
    settle(job, history, trainer, early, "road.ring_size", 4)
    by_files = {r["version"]: r.get("fallback", "") for r in records(work / "trainer.jsonl")}
    assert by_files == {1: "", 2: "", 3: "shared_fs", 4: "shared_fs"}
    assert versions(work / "trainer.jsonl") == [1, 2, 3, 4]

    again = job.train("--rollouts", 1)
    wait_for(lambda: not (job.dir / "closed.json").exists(), "the end of the first part to be withdrawn")
    result = settle(job, history, again, {"next": job.roll_out("next")}, "goes on there", 5)[0]
    assert json.loads(result.stdout.splitlines()[-1])["version"] == 5


def test_full_versions_that_the_ring_cannot_hold_go_by_files_from_the_first(job, work, rng):
    history = make_run(work / "run", rng, STEPS, rows=40_000)
    job.set(**{"mode": "full", "road.ring_size": "1MiB"})
    trainer = job.train("--interval-ms", 100, "--rollouts", 1)
    reason = "a full version of rank 0 takes up to"
    settle(job, history, trainer, {"one": job.roll_out("one")}, reason)
    assert {r["fallback"] for r in records(work / "trainer.jsonl")} == {"shared_fs"}


def test_a_run_on_its_fallback_continues_with_the_fallback_as_its_road(job, work, rng):
    """No process has the peer road in its configuration any more."""
    history = make_run(work / "run", rng, STEPS)
    port = next(s for s in job.settings if str(s).startswith("hub.address=")).rsplit(":", 1)[1]
    with socket.create_server(("127.0.0.1", int(port))):
        trainer = job.train("--rollouts", 1, "--steps", 3)
        settle(job, history, trainer, {"one": job.roll_out("one")}, "127.0.0.1:" + port, 3)
    run = json.loads((job.dir / "run.json").read_text())
    job.set(**{"road.kind": "shared_fs", "road.layout": "frames", "road.peer.fallback": ""})
    trainer = job.train("--rollouts", 1)
    wait_for(lambda: not (job.dir / "closed.json").exists(), "the end of the first part to be withdrawn")
    rollout = job.roll_out("two")
    for process in (trainer, rollout):
        result = finish(process)
        assert result.returncode == 0 and not switch_lines(result), result.stderr + result.stdout
    assert read_checkpoint(work / "two/rollout_00") == history[STEPS]
    assert versions(work / "trainer.jsonl") == list(range(1, STEPS + 1))
    assert json.loads((job.dir / "run.json").read_text())["run"] == run["run"]


def dense_steps(rng, weights, run, first):
    for step in range(first, first + 3):
        share = 0.9 if step == first else 0.001
        weights = {n: changed(rng, t, share) for n, t in weights.items()}
        write_checkpoint(run / f"step_{step:06d}", weights)
        yield weights


def test_a_rollout_that_cannot_reach_the_hub_uses_files_only_if_the_trainer_does(job, work, rng):
    make_run(work / "run", rng, STEPS)
    trainer = job.train("--interval-ms", 200, "--rollouts", 1)
    good = job.roll_out("good")
    wait_for(lambda: versions(work / "good.jsonl"), "the first version")
    other = work / "other"
    job.set(**{"hub.token_file": other, "deadlines.connect": "2s"})
    result = finish(job.roll_out("strange"))
    assert result.returncode != 0 and not switch_lines(result), result.stderr
    assert "does not publish on shared_fs" in result.stderr and str(other) in result.stderr, result.stderr
    assert not switch_lines(finish(trainer)) and not switch_lines(finish(good))


def test_without_a_fallback_the_reason_is_an_error(job, work, rng):
    make_run(work / "run", rng, STEPS)
    job.token.unlink()
    result = finish(job.train("--set", "road.peer.fallback="))
    assert result.returncode != 0 and str(job.token) in result.stderr and not switch_lines(result)


def test_a_trainer_that_cannot_read_its_fallback_does_not_start(job, work, rng):
    """A run may be there, so versions must not go peer to peer."""
    make_run(work / "run", rng, STEPS)
    (job.dir / "run.json").mkdir(parents=True)  # no file, so it cannot be read
    result = finish(job.train())
    assert result.returncode != 0 and not versions(work / "trainer.jsonl"), result.stdout
    assert "the fallback shared_fs" in result.stderr and "run.json" in result.stderr, result.stderr


def test_a_restart_on_the_fallback_reports_how_to_leave_it(job, work, rng):
    """After that, a rollout of the earlier run ends and names the new one, and the others follow the
    new run peer to peer."""
    history = make_run(work / "run", rng, STEPS)
    token = job.token.rename(work / "hidden")
    trainer = job.train("--rollouts", 1, "--steps", 2)
    settle(job, history, trainer, {"one": job.roll_out("one")}, str(job.token), 2)
    token.rename(job.token)
    stays = job.train("--rollouts", 1, "--steps", 3)
    wait_for(lambda: not (job.dir / "closed.json").exists(), "the end of the first part to be withdrawn")
    (line,) = switch_lines(settle(job, history, stays, {"two": job.roll_out("two")}, "goes on there", 3)[0])
    assert "set road.shared_fs.dir to an empty place for trainer and rollouts" in line, line
    (job.dir / "closed.json").unlink()  # as if the trainer had been killed
    behind = job.roll_out("behind")
    wait_for(lambda: 3 in versions(work / "behind.jsonl"), "version 3 by files")

    job.set(**{"road.shared_fs.dir": work / "empty"})
    trainer = job.train("--rollouts", 1, "--interval-ms", 3000)
    ahead = job.roll_out("ahead")
    result = finish(behind)
    assert result.returncode != 0 and "set road.shared_fs.dir as for that trainer" in result.stderr, result.stderr
    for process in (trainer, ahead):
        result = finish(process)
        assert result.returncode == 0 and not switch_lines(result), result.stderr
    assert read_checkpoint(work / "ahead/rollout_00") == history[STEPS]
    assert {r.get("fallback", "") for r in records(work / "ahead.jsonl")} == {""}


def test_two_jobs_with_one_fallback_are_kept_apart(work, rng):
    """Each has a secret and a hub of its own. The first one goes over."""
    history = make_run(work / "run", rng, STEPS, rows=4096)
    jobs = [Job(work / name) for name in ("one", "two")]
    for number, each in enumerate(jobs):
        shutil.copytree(work / "run", each.work / "run", dirs_exist_ok=True)
        each.token.write_text(f"{number}" * 32 + "\n")
        each.set(**{"road.shared_fs.dir": work / "road"})
        each.dir = work / "road"
    one, two = jobs
    one.set(**{"mode": "full", "road.ring_size": "64KiB"})
    first = one.train("--rollouts", 1, "--steps", 3)
    settle(one, history, first, {"a": one.roll_out("a")}, "road.ring_size", 3)

    refused = finish(two.train())
    assert refused.returncode != 0 and not versions(two.work / "trainer.jsonl")
    assert "set another road.shared_fs.dir for this job" in refused.stderr, refused.stderr

    # Only the rollouts of the second job share the directory.
    strange = two.roll_out("strange")
    two.set(**{"road.shared_fs.dir": work / "other"})
    second = two.train("--rollouts", 1, "--interval-ms", 700)
    result = finish(strange)
    assert result.returncode == 0 and finish(second).returncode == 0, result.stderr
    assert "of another job: it is not followed; set another road.shared_fs.dir" in result.stderr
    assert {r.get("fallback", "") for r in records(two.work / "strange.jsonl")} == {""}
    assert read_checkpoint(two.work / "strange/rollout_00") == history[STEPS]


def test_a_fallback_that_forgets_or_lacks_its_directory_is_refused(job, work):
    result = finish(job.train("--set", "road.peer.fallback=mpi_rma"))
    assert "road.peer.fallback: expected shared_fs or object_store" in result.stderr, result.stderr
    result = finish(job.train("--set", "road.shared_fs.dir="))
    assert "road.shared_fs.dir is missing: shared_fs, as a fallback" in result.stderr, result.stderr
    (work / "file").write_text("")
    result = finish(job.train("--set", f"road.shared_fs.dir={work}/file/road"))
    assert result.returncode != 0, result.stderr


@pytest.mark.long
@pytest.mark.parametrize("seed", range(6))
def test_processes_that_die_or_stop_during_the_change_to_the_fallback(job, work, rng, seed):
    """The trainer is killed at a random moment around the version that does not fit, and restarted;
    a rollout is stopped, another one killed. Each rollout's versions ascend, and all end alike."""
    chance = random.Random(seed)
    history = make_run(work / "run", rng, 2, rows=4096)
    history += dense_steps(rng, history[-1], work / "run", 3)
    job.set(**{"road.ring_size": "128KiB", "anchors.first": "true"})
    trainer = job.train("--interval-ms", 150)
    names = ["one", "two", "three"]
    rollouts = {name: job.roll_out(name) for name in names}
    wait_for(lambda: 2 in versions(work / "trainer.jsonl"), "version 2")
    rollouts["two"].send_signal(signal.SIGSTOP)
    time.sleep(chance.uniform(0, 0.4))
    trainer.kill()
    trainer.communicate()
    rollouts["three"].kill()
    rollouts["three"].communicate()
    gone_over = (job.dir / "run.json").exists()
    last = job.train("--interval-ms", 150, "--rollouts", 1)
    rollouts["three"] = job.roll_out("three")
    if not gone_over:  # a new run: rollouts of the old one end, and report why
        rollouts["two"].send_signal(signal.SIGCONT)
        for name in ("one", "two"):
            finish(rollouts.pop(name))
    else:
        rollouts["two"].send_signal(signal.SIGCONT)
    assert ended(last)["version"] >= STEPS
    for name, process in rollouts.items():
        ended(process)
        assert read_checkpoint(work / name / "rollout_00") == history[5]
        taken = versions(work / f"{name}.jsonl")
        if name != "three":
            assert taken == sorted(set(taken)), (name, taken)
