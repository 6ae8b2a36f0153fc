# SPDX-License-Identifier: Apache-2.0
"""Publisher and receiver of the Python package, over a directory, in one process."""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import binding
from support import Tensor, read_checkpoint, write_checkpoint

driftless = binding.driftless()


@pytest.fixture
def first(rng):
    return binding.weights(rng)


def publish(pair, tensors):
    return pair.publisher.publish(binding.Source(driftless, tensors))


@pytest.mark.parametrize("layout", ["flush", "hf_delta", "frames"])
def test_bits_and_digest_agree(work, rng, first, layout):
    pair = binding.Pair(driftless, work / "road", first, f"road.layout={layout}")
    weights = first
    for version in range(1, 4):
        weights = binding.step(rng, weights)
        report = publish(pair, weights)
        assert report.version == version and report.base_version == version - 1
        assert pair.receiver.stage(60)
        update = pair.receiver.commit()
        assert pair.holds(weights)
        assert update.version == version == pair.receiver.version == pair.publisher.version
        whole = driftless.digest((n, a) for n, (_, a) in weights.items())
        assert report.digest == update.digest == pair.publisher.digest == whole
        assert 0 < update.changed_units == report.changed_units < report.total_units
        each = {n: driftless.digest([(n, a)]) for n, (_, a) in weights.items()}
        assert pair.receiver.tensor_digests == each
    assert pair.publisher.run == pair.receiver.run == pair.target.state.run
    (output,) = pair.publisher.receivers()
    assert (output.id, output.version, output.digest, output.proven) == ("one", 3, whole, True)
    assert pair.receiver.stage() is False
    publish(pair, binding.step(rng, weights))
    assert pair.receiver.stage() is True  # a visible version needs no waiting


def test_targets_without_a_base(work, rng, first):
    weights = binding.step(rng, first)
    path = write_checkpoint(
        work / "base", {n: Tensor(d, a.shape, a.tobytes()) for n, (d, a) in first.items()}
    )
    owned = driftless.OwnedTarget()
    with pytest.raises(driftless.errors.NotFoundError, match="no layout yet"):
        owned.tensor("norm.weight")
    pair = binding.Pair(
        driftless, work / "road", first, "anchors.first=true", target=owned, timeout_s=5
    )
    copied = driftless.OwnedTarget(path)
    patched = driftless.CheckpointTarget(path)
    assert copied.state.valid and copied.state.run is None and owned.layout == copied.layout
    job = driftless.Job(pair.config, "rollout", launched=False)
    others = [
        driftless.Receiver(job, target, id=name)
        for name, target in (("copied", copied), ("patched", patched))
    ]
    publish(pair, weights)
    for receiver in (pair.receiver, *others):
        while receiver.version < 1:
            assert receiver.stage(60)
            receiver.commit()
    assert binding.same(owned, weights) and binding.same(copied, weights)
    view = owned.tensor("norm.weight")
    assert not view.flags.writeable and owned.ref("norm.weight").dtype == "F16"
    job.close()
    del others, patched, job
    found = read_checkpoint(path)
    assert all(found[n].data == a.tobytes() for n, (_, a) in weights.items())


def test_checkpoint_as_source(work, rng, first):
    def tensors(weights):
        return {n: Tensor(d, a.shape, a.tobytes()) for n, (d, a) in weights.items()}

    second = binding.step(rng, first)
    paths = [write_checkpoint(work / n, tensors(w)) for n, w in (("a", first), ("b", second))]
    source = driftless.CheckpointSource(paths[0])
    assert [t.name for t in source.tensors()] == sorted(first)
    assert source.tensor("norm.weight").numpy().tobytes() == first["norm.weight"][1].tobytes()
    halves = [driftless.CheckpointSource(paths[0], stage, 2).tensors() for stage in (0, 1)]
    assert halves[0] + halves[1] == source.tensors()
    with pytest.raises(driftless.errors.InvalidArgumentError, match="stage 2 of 2"):
        driftless.CheckpointSource(paths[0], 2, 2)
    job = driftless.Job(binding.config(driftless, work / "road"), "trainer", launched=False)
    publisher = driftless.Publisher(job, source)
    assert publisher.publish(driftless.CheckpointSource(paths[1])).changed_units > 0
    # The same through Python's visit().
    assert publisher.publish(binding.Source(driftless, dict(sorted(first.items())))).version == 2
    job.close()


class Odd(BaseException):
    """Not even derived from Exception."""


@pytest.mark.parametrize("at", ["tensors", "visit", 0, 1])
@pytest.mark.parametrize("failure", [KeyError("mine"), Odd("mine")])
def test_an_exception_of_a_source_is_raised_unchanged(work, rng, first, at, failure):
    pair = binding.Pair(driftless, work / "road", first)
    second = binding.step(rng, first)
    broken = binding.Broken(driftless, second, failure=failure, at=at)
    with pytest.raises(type(failure)) as raised:
        pair.publisher.publish(broken)
    assert raised.value is failure
    assert pair.publisher.version == 0 and pair.receiver.stage() is False
    # The failed version left nothing: the next one has all changes.
    assert publish(pair, second).version == 1
    assert pair.receiver.stage(60) and pair.receiver.commit().version == 1
    assert pair.holds(second)


def test_wrong_offers_are_named(work, rng, first):
    pair = binding.Pair(driftless, work / "road", first)

    def offer(change):
        source = binding.Source(driftless, first)
        change(source)
        with pytest.raises(driftless.Error) as refused:
            pair.publisher.publish(source)
        assert pair.publisher.version == 0
        return str(refused.value)

    def set_array(index, array):
        return lambda source: source.arrays.__setitem__(index, array)

    embed = first["embed.weight"][1]
    assert "'embed.weight' has shape [32, 32], expected [64, 32]" in offer(set_array(0, embed[:32]))
    wide = np.zeros((64, 64), np.uint16)[:, ::2]
    assert "'embed.weight' is not contiguous" in offer(set_array(0, wide))
    floats = embed.astype(np.float32)
    assert "'embed.weight' has dtype F32, expected BF16" in offer(set_array(0, floats))
    assert "number 9 of 5" in offer(lambda s: setattr(s, "visit", lambda: [[(9, embed)]]))
    assert "'norm.weight'" in offer(lambda s: s.specs.pop())
    missing = offer(lambda s: setattr(s, "visit", lambda: [[(0, embed)]]))
    assert "ended without tensor 'layers.0.weight'" in missing
    twice = offer(lambda s: setattr(s, "visit", lambda: [[(0, embed)], [(0, embed)]]))
    assert "'embed.weight' twice" in twice


def test_dense_step_visits_twice(work, rng, first):
    pair = binding.Pair(driftless, work / "road", first)
    dense = {n: (d, (a.view(f"<u{a.itemsize}") ^ 1).view(a.dtype)) for n, (d, a) in first.items()}
    source = binding.Source(driftless, dense)
    assert pair.publisher.publish(source).encoding == "full" and source.visits == 2
    assert pair.receiver.stage(60) and pair.receiver.commit() and pair.holds(dense)


def test_pause_and_resume(work, rng, first):
    calls, fail = [], [None]

    def pause():
        calls.append("pause")
        if fail[0]:
            raise fail[0]

    pair = binding.Pair(
        driftless, work / "road", first, pause=pause, resume=lambda: calls.append("resume")
    )
    second = binding.step(rng, first)
    publish(pair, second)
    assert pair.receiver.stage(60) and calls == []
    fail[0] = LookupError("the engine is away")
    with pytest.raises(LookupError) as raised:
        pair.receiver.commit()
    assert raised.value is fail[0] and pair.holds(first) and calls == ["pause"]
    fail[0] = None
    pair.receiver.commit()
    assert pair.holds(second) and calls == ["pause", "pause", "resume"]
    pair.receiver.rollback()
    assert pair.holds(first) and pair.receiver.version == 0
    with pytest.raises(driftless.errors.InvalidArgumentError, match="nothing to take back"):
        pair.receiver.rollback()
    with pytest.raises(driftless.errors.InvalidArgumentError, match="nothing is staged"):
        pair.receiver.commit()


def test_before_read(work, rng, first):
    seen, fail = [], [None]

    def look(version):
        seen.append(version)
        if fail[0]:
            raise fail[0]

    pair = binding.Pair(driftless, work / "road", first, before_read=look)
    publish(pair, binding.step(rng, first))
    fail[0] = LookupError("the volume is away")
    with pytest.raises(LookupError) as raised:
        pair.receiver.stage(60)
    assert raised.value is fail[0] and seen == [1] and pair.holds(first)
    fail[0] = None
    assert pair.receiver.stage(60) and seen == [1, 1]
    pair.receiver.commit()
    assert pair.receiver.version == 1


def test_wrong_base_and_layout(work, rng, first):
    pair = binding.Pair(driftless, work / "road", first)
    job = driftless.Job(pair.config, "rollout", launched=False)
    other = binding.step(rng, first)
    with pytest.raises(driftless.errors.WrongBaseError):
        driftless.Receiver(job, pair.memory(other), id="two")
    del other["norm.weight"]
    with pytest.raises(driftless.errors.WrongLayoutError, match="norm.weight"):
        driftless.Receiver(job, pair.memory(other), id="two")


def test_resume_and_end(work, rng, first):
    pair = binding.Pair(driftless, work / "road", first)
    second = binding.step(rng, first)
    publish(pair, second)
    assert pair.receiver.end() is None
    pair.publisher.declare_end()
    end = pair.receiver.end()
    assert (end.run, end.version, end.digest) == (pair.publisher.run, 1, pair.publisher.digest)
    run = pair.publisher.run
    pair.trainer.close()
    with pytest.raises(driftless.errors.InvalidArgumentError, match="publisher is closed"):
        pair.publisher.publish(binding.Source(driftless, second))
    with pytest.raises(driftless.errors.InvalidArgumentError, match="job is closed"):
        pair.trainer.rank
    job = driftless.Job(pair.config, "trainer", launched=False)
    again = driftless.Publisher(job, binding.Source(driftless, first))
    assert again.resumed and again.run == run and again.version == 1
    assert pair.receiver.end() is None
    third = binding.step(rng, second)
    assert again.publish(binding.Source(driftless, third)).base_version == 1
    assert pair.receiver.stage(60) and pair.receiver.commit().versions == 2
    assert pair.holds(third)


def test_anchors(work, rng, first):
    pair = binding.Pair(driftless, work / "road", first)
    publish(pair, binding.step(rng, first))
    pair.publisher.publish_anchor()
    pair.publisher.request_anchor()
    assert publish(pair, first).anchor
    job = driftless.Job(pair.config, "rollout", launched=False)
    target = driftless.OwnedTarget()
    late = driftless.Receiver(job, target, id="late")
    assert late.stage(60) and late.commit().anchor and binding.same(target, first)


def test_roles(work, first):
    config = binding.config(driftless, work / "road")
    with pytest.raises(driftless.errors.InvalidArgumentError, match="'judge'"):
        driftless.Job(config, "judge")
    bystander = driftless.Job(config, "bystander", launched=False)
    with pytest.raises(driftless.errors.InvalidArgumentError, match="bystander"):
        driftless.Publisher(bystander, binding.Source(driftless, first))
    rollout = driftless.Job(config, "rollout", launched=False)
    with pytest.raises(driftless.errors.InvalidArgumentError, match="role trainer"):
        driftless.Publisher(rollout, binding.Source(driftless, first))
    assert (rollout.rank, rollout.trainers, rollout.rollouts, rollout.together) == (0, 0, 1, False)
    bystander.close()
    bystander.close()


def test_one_call_at_a_time(work, rng, first):
    """A call from a second thread, or from a callback, is refused; the first call is not
    disturbed."""
    pair = binding.Pair(driftless, work / "road", first)
    second = binding.step(rng, first)
    refusals = []

    class Curious(binding.Source):
        def visit(self):
            for batch in super().visit():
                for call in (lambda: pair.publisher.publish(self), pair.trainer.close):
                    try:
                        call()
                    except driftless.errors.BusyError as refused:
                        refusals.append(str(refused))
                yield batch

    assert pair.publisher.publish(Curious(driftless, second, 5)).version == 1
    assert len(refusals) == 2 and "the publisher is in use" in refusals[0]


def test_a_job_cannot_be_closed_while_a_publisher_opens(work, first):
    job = driftless.Job(binding.config(driftless, work / "road"), "trainer", launched=False)

    class Leaving(binding.Source):
        def visit(self):
            job.leave()
            yield from super().visit()

    with pytest.raises(driftless.errors.BusyError, match="the job"):
        driftless.Publisher(job, Leaving(driftless, first))
    assert not job.closed
    driftless.Publisher(job, binding.Source(driftless, first)).declare_end()
    job.leave()
    assert job.closed


def test_a_target_that_a_busy_job_did_not_take_is_free(work, first):
    pair = binding.Pair(driftless, work / "road", first)
    waits = driftless.Job(binding.config(driftless, work / "none"), "rollout", launched=False)

    def wait():
        with pytest.raises(TimeoutError):
            driftless.Receiver(waits, driftless.OwnedTarget(), timeout_s=6)

    opening = threading.Thread(target=wait)
    opening.start()
    time.sleep(1.5)
    target = pair.memory(first)
    with pytest.raises(driftless.errors.BusyError, match="the job"):
        driftless.Receiver(waits, target)
    # The old target no longer uses memory at that address.
    other = driftless.Receiver(pair.rollout, driftless.OwnedTarget(), id="other")
    staging = threading.Thread(target=lambda: other.stage(1))
    staging.start()
    time.sleep(0.3)
    assert target.sweep()
    staging.join()
    opening.join()


def test_the_gil_is_free_while_waiting(work, first):
    pair = binding.Pair(driftless, work / "road", first)
    waiting = threading.Thread(target=lambda: pair.receiver.stage(1.5))
    waiting.start()
    ticks = 0
    while waiting.is_alive():
        time.sleep(0.01)
        ticks += 1
    waiting.join()
    assert ticks > 4
    with pytest.raises(driftless.errors.InvalidArgumentError, match="timeout_s"):
        pair.receiver.stage(-1)
    with pytest.raises(driftless.errors.InvalidArgumentError, match="timeout_s"):
        pair.receiver.stage(float("nan"))


WAITING = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # it is ignored in a background job
import sys, numpy, driftless
config = driftless.Config.parse("road: {{kind: shared_fs, shared_fs: {{ dir: {road} }}}}")
job = driftless.Job(config, "rollout", launched=False)
target = driftless.OwnedTarget()
print("waiting", flush=True)
if {opened}:
    receiver = driftless.Receiver(job, target, id="x", timeout_s=60)
    print("staging", flush=True)
    receiver.stage(60)
driftless.Receiver(job, target, id="x", timeout_s=60)
"""


@pytest.mark.parametrize("opened", [False, True])
def test_keyboard_interrupt_ends_a_wait(work, first, opened):
    if opened:
        binding.Pair(driftless, work / "road", first)
    process = subprocess.Popen(
        [sys.executable, "-c", WAITING.format(road=work / "road", opened=opened)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(binding.PACKAGE)},
    )
    assert process.stdout.readline() == "waiting\n"
    assert not opened or process.stdout.readline() == "staging\n"
    time.sleep(0.3)
    begin = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=300)
    assert "KeyboardInterrupt" in err and time.monotonic() - begin < 40


def test_timeouts_are_timeouts(work):
    job = driftless.Job(binding.config(driftless, work / "road"), "rollout", launched=False)
    begin = time.monotonic()
    with pytest.raises(TimeoutError) as late:
        driftless.Receiver(job, driftless.OwnedTarget(), timeout_s=0.5)
    assert late.value.code == "deadline_exceeded" and 0.4 < time.monotonic() - begin < 40


def test_target_of_two_receivers(work, first):
    pair = binding.Pair(driftless, work / "road", first)
    with pytest.raises(driftless.errors.BusyError, match="the target"):
        driftless.Receiver(pair.rollout, pair.target, id="two")
    pair.receiver.close()
    with driftless.Receiver(pair.rollout, pair.target, id="two") as second:
        assert second.version == 0
    assert pair.publisher.receivers() == [] or all(
        r.id != "two" for r in pair.publisher.receivers()
    )


def test_metrics(work, rng, first):
    pair = binding.Pair(
        driftless, work / "road", first, f"metrics.file={work}/{{role}}_{{rank}}.jsonl"
    )
    publish(pair, binding.step(rng, first))
    assert pair.receiver.stage(60) and pair.receiver.commit()
    for role in ("trainer", "rollout"):
        (line,) = (work / f"{role}_0.jsonl").read_text().splitlines()
        assert f'"{role}"' in line


def test_torch_both_ways(work, rng, first):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.Linear(4, 2)).to(torch.bfloat16)

    class Model:
        def tensors(self):
            return [
                driftless.TensorSpec(n, "BF16", tuple(p.shape)) for n, p in model.named_parameters()
            ]

        def visit(self):
            for number, parameter in enumerate(model.parameters()):
                yield [(number, parameter)]

    config = binding.config(driftless, work / "road", "full_above_density=1")
    trainer = driftless.Job(config, "trainer", launched=False)
    rollout = driftless.Job(config, "rollout", launched=False)
    copy = {n: p.detach().clone() for n, p in model.named_parameters()}
    publisher = driftless.Publisher(trainer, Model())
    receiver = driftless.Receiver(rollout, driftless.MemoryTarget(copy, version=0), id="x")
    with torch.no_grad():
        model[0].weight[0, 0] += 1
    publisher.publish(Model())
    assert receiver.stage(60) and receiver.commit().changed_units == 1
    assert all(torch.equal(copy[n], p) for n, p in model.named_parameters())


def test_a_trainer_that_lost_its_lock_cannot_end_the_run(work, rng, first):
    """It wakes up late, with nothing left to publish; another trainer has resumed its run."""
    pair = binding.Pair(driftless, work / "road", first)
    second = binding.step(rng, first)
    publish(pair, second)
    # A file server drops the locks of a client in this way.
    (work / "road" / ".driftless-publisher.lock").unlink()
    with driftless.Job(pair.config, "trainer", launched=False) as job:
        other = driftless.Publisher(job, binding.Source(driftless, first))
        assert other.run == pair.publisher.run and other.version == 1
        with pytest.raises(driftless.errors.WrongRunError, match="does not hold the lock"):
            pair.publisher.declare_end()
        assert pair.receiver.end() is None
        other.publish(binding.Source(driftless, binding.step(rng, second)))
        other.declare_end()
    assert pair.receiver.end().version == 2


@pytest.mark.parametrize("versions", [1, 2])
def test_a_run_in_the_place_of_another_is_reported(work, rng, first, versions):
    """The directory was cleared, so the new run's numbers are not above those of the old run's
    holder."""
    pair = binding.Pair(driftless, work / "road", first, "deadlines.fetch=2s")
    second = binding.step(rng, first)
    for tensors in (second, binding.step(rng, second)):
        publish(pair, tensors)
        assert pair.receiver.stage(60) and pair.receiver.commit()
    assert not pair.receiver.stage(0.5), "its own run may be idle"
    pair.trainer.leave()
    shutil.rmtree(work / "road")
    with driftless.Job(pair.config, "trainer", launched=False) as job:
        other = driftless.Publisher(job, binding.Source(driftless, second))
        for _ in range(versions):
            second = binding.step(rng, second)
            other.publish(binding.Source(driftless, second))
        other.declare_end()
        with pytest.raises(driftless.errors.WrongRunError, match="restart it to follow the other"):
            for _ in range(20):
                assert not pair.receiver.stage(0.5)
