# SPDX-License-Identifier: Apache-2.0
"""Publishers without a snapshot: changes are captured as they are written (Publisher.capture())."""

import os
import shutil
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

import numpy as np
import pytest

import binding
import jobs
from support import COMMAND, Tensor, ok, read_checkpoint, write_checkpoint

sys.path.insert(0, str(Path(__file__).resolve().parent / "megatron"))
import megatron_jobs  # noqa: E402

driftless = binding.driftless()


def bf16(values):
    """The bits of float32 rounded to bfloat16: to nearest, ties to even. Not for NaN."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def as_bf16(block):
    """The same memory as BF16: numpy has no bfloat16."""
    return driftless.TensorRef.from_pointer(
        block.ctypes.data, "BF16", list(block.shape), owner=block
    )


class Trainer:
    """bfloat16 weights in two blocks, a bias that the optimizer does not write, and float32 main
    weights."""

    def __init__(self, seed=3):
        self.rng = np.random.default_rng(seed)
        self.main = self.rng.normal(0, 0.05, (8, 200)).astype(np.float32)
        self.weight = bf16(self.main)
        self.bias = np.zeros(5, np.float32)
        self.source = driftless.ShardedSource(
            [
                ("w", as_bf16(self.weight[:3]), (8, 200), (0, 0)),
                ("w", as_bf16(self.weight[3:]), (8, 200), (3, 0)),
                ("bias", self.bias, (5,), (0,), True, True),
            ]
        )

    def step(self, publisher, capture=True):
        self.main += self.rng.normal(0, 1e-5, self.main.shape).astype(np.float32)
        if capture:
            publisher.capture([(0, self.main[:3]), (1, self.main[3:])])
        self.weight[:] = bf16(self.main)
        self.bias += 1

    def weights(self):
        return {"w": self.weight, "bias": self.bias}


@pytest.fixture
def run(work):
    config = binding.config(driftless, work / "road")
    trainer = Trainer()
    held = {name: tensor.copy() for name, tensor in trainer.weights().items()}
    with (
        driftless.Job(config, "trainer", launched=False) as job,
        driftless.Job(config, "rollout", launched=False) as other,
        driftless.Publisher(job, trainer.source, snapshot="none") as publisher,
    ):
        target = driftless.MemoryTarget(held, version=0, dtypes={"w": "BF16"})
        receiver = driftless.Receiver(other, target)

        def follow():
            assert receiver.stage(timeout_s=60)
            receiver.commit()
            for name, tensor in trainer.weights().items():
                assert np.array_equal(held[name], tensor), name

        yield trainer, publisher, follow


def test_rollouts_get_the_captured_steps(run):
    trainer, publisher, follow = run
    for _ in range(3):
        trainer.step(publisher)
        trainer.step(publisher)
        report = publisher.publish(trainer.source)
        assert report.encoding == "deltas_zstd" and not report.notes
        assert 0 < report.changed_units < 400
        assert report.live.captured_bytes > 0 and report.live.step_ms >= report.live.capture_ms > 0
        follow()


def test_publishing_during_the_next_step(run):
    trainer, publisher, follow = run
    assert publisher.wait() is None
    for step in range(1, 4):
        trainer.step(publisher)
        assert publisher.publish(trainer.source, wait=False) is None
        trainer.bias += 100  # written after publish(): the version after the next has it
        report = publisher.wait()
        assert report.version == step and publisher.wait() is None
        assert not report.notes and report.total_ms > 0
        trainer.bias -= 100
        follow()
        assert publisher.version == step


def test_a_step_waits_for_the_version_before(run):
    trainer, publisher, follow = run
    for _ in range(5):
        trainer.step(publisher)
        publisher.publish(trainer.source, wait=False)
    assert publisher.wait().version == 5
    follow()


def test_a_write_that_was_not_captured_is_found_by_name(run):
    trainer, publisher, follow = run
    trainer.step(publisher, capture=False)
    report = publisher.publish(trainer.source)
    assert any("tensor 'w'" in note and "without capture()" in note for note in report.notes)
    follow()
    trainer.step(publisher)
    assert not publisher.publish(trainer.source).notes
    follow()


def test_wrong_captures_are_refused(run, work):
    trainer, publisher, _ = run
    refused = driftless.errors.InvalidArgumentError
    with pytest.raises(refused, match="item 1, tensor 'w': 600 new values for 1000 weights"):
        publisher.capture([(1, trainer.main[:3])])
    with pytest.raises(refused, match="item 7 of 3"):
        publisher.capture([(7, trainer.main)])
    with pytest.raises(driftless.Error, match="'w' is BF16, and its new values are F64"):
        publisher.capture([(0, trainer.main[:3].astype(np.float64))])
    moved = [*trainer.source.shards()]
    moved[2] = moved[2]._replace(tensor=trainer.bias.copy())
    with pytest.raises(refused, match="'bias' does not lie where it lay"):
        publisher.publish(driftless.ShardedSource(moved))
    config = binding.config(driftless, work / "other")
    with driftless.Job(config, "trainer", launched=False) as job:
        with pytest.raises(driftless.Error, match="expected host, pinned, device or none"):
            driftless.Publisher(job, trainer.source, snapshot="some")
        with driftless.Publisher(job, trainer.source) as other:
            with pytest.raises(refused, match="set snapshot: none"):
                other.capture([])
            with pytest.raises(refused, match="set snapshot: none"):
                other.publish(trainer.source, wait=False)


def test_weights_are_compared_after_a_refused_capture(work):
    """Even if the publisher sweeps nothing by itself: the trainer may have continued."""
    config = binding.config(driftless, work / "road", "capture.sweep_every=0")
    trainer = Trainer()
    with (
        driftless.Job(config, "trainer", launched=False) as job,
        driftless.Publisher(job, trainer.source, snapshot="none") as publisher,
    ):
        trainer.step(publisher)
        publisher.publish(trainer.source)
        with pytest.raises(driftless.errors.InvalidArgumentError):
            publisher.capture([(1, trainer.main[:3])])
        trainer.step(publisher, capture=False)
        report = publisher.publish(trainer.source)
        assert any("tensor 'w'" in note for note in report.notes) and report.changed_units > 0


def breakable(trainer, job):
    """A publisher, and a list: its next entry makes the next version fail."""
    broken = []

    def before_visible(directory):
        if broken:
            raise RuntimeError(broken.pop())

    return driftless.Publisher(
        job, trainer.source, snapshot="none", before_visible=before_visible
    ), broken


@pytest.fixture
def failing(work):
    """A job, and a function that opens a publisher whose version fails during the next step."""
    config = binding.config(driftless, work / "road")
    trainer = Trainer()

    def fail(job):
        publisher, broken = breakable(trainer, job)
        trainer.step(publisher)
        broken.append("the disk is full")
        publisher.publish(trainer.source, wait=False)
        return publisher

    return trainer, lambda: driftless.Job(config, "trainer", launched=False), fail


def end_publisher(new_job, fail):
    with new_job() as job, fail(job):
        pass


def end_job(new_job, fail):
    with new_job() as job:
        publisher = fail(job)
    assert publisher  # keeps it alive: only the job closes it


def end_run(new_job, fail):
    with new_job() as job:
        publisher = fail(job)
        with pytest.raises(RuntimeError, match="the disk is full") as failure:
            publisher.declare_end()
        publisher.declare_end()  # the failure was raised before
        raise failure.value


@pytest.mark.parametrize("end", [end_publisher, end_job, end_run])
def test_a_failure_after_the_last_step_is_raised_by_the_end_of_the_run(failing, end):
    _, new_job, fail = failing
    with pytest.raises((driftless.Error, RuntimeError), match="the disk is full"):
        end(new_job, fail)


def test_a_failure_is_not_raised_once_a_version_has_its_changes(failing):
    trainer, new_job, fail = failing
    with new_job() as job, fail(job) as publisher:
        assert publisher.publish(trainer.source).changed_units > 0


def test_a_background_failure_does_not_hide_another_failure(failing, work):
    trainer, new_job, _ = failing
    with pytest.raises(KeyError, match="mine"), new_job() as job:
        publisher, broken = breakable(trainer, job)
        trainer.step(publisher)
        broken.append("the disk is full")
        publisher.publish(trainer.source, wait=False)
        while broken:
            time.sleep(0.01)
        (work / "road").rename(work / "gone")
        (work / "road").write_text("no directory")
        with pytest.raises(driftless.Error, match="road"):
            publisher.publish(trainer.source)
        raise KeyError("mine")


def test_another_exception_is_not_replaced(failing):
    _, new_job, fail = failing
    with pytest.raises(KeyError, match="mine"), new_job() as job, fail(job):
        raise KeyError("mine")


LEAVES = """
import os, signal, sys, time
sys.path[:0] = {path!r}
import test_live
driftless = test_live.driftless
config = driftless.Config.parse({config!r}, [])
trainer = test_live.Trainer()
job = driftless.Job(config, "trainer", launched=False)
publisher = driftless.Publisher(
    job, trainer.source, snapshot="none", before_visible=lambda directory: time.sleep(0.5)
)
trainer.step(publisher)
publisher.publish(trainer.source, wait=False)
with job:
    child = os.fork()
    if child:
        assert os.waitpid(child, 0)[1] == 0
    else:
        signal.alarm(120)  # what the child waits for would never come
"""


def test_a_program_that_ends_completes_its_version(work):
    """The version is on the road, complete, though nothing waited for it. A forked child just
    ends."""
    config = f"road:\n  kind: shared_fs\n  shared_fs:\n    dir: {work}/road\n"
    script = LEAVES.format(path=[str(Path(__file__).parent), *sys.path], config=config)
    subprocess.run([sys.executable, "-c", script], check=True, timeout=300)
    assert (work / "road" / "weight_v000001" / "DONE").exists()


def test_a_background_failure_is_raised_by_the_next_call(work):
    config = binding.config(driftless, work / "road")
    trainer = Trainer()
    with driftless.Job(config, "trainer", launched=False) as job:
        publisher, broken = breakable(trainer, job)
        trainer.step(publisher)
        broken.append("the disk is full")
        publisher.publish(trainer.source, wait=False)
        with pytest.raises(RuntimeError, match="the disk is full"):
            publisher.wait()
        publisher.publish(trainer.source, wait=False)
        assert publisher.wait().version == 1
        trainer.step(publisher)
        broken.append("the disk is full")
        publisher.publish(trainer.source, wait=False)
        with pytest.raises(driftless.Error, match="the disk is full"):
            publisher.close()


class OneRank:
    """A group of one rank. A background version continues when the test says so."""

    rank, size = 0, 1

    def __init__(self):
        self.go = threading.Event()
        self.go.set()

    def begin_epoch(self, number):
        pass

    def gather(self, message, timeout_s):
        assert self.go.wait(timeout_s)
        return [message]

    def broadcast(self, message, timeout_s):
        return message


@pytest.mark.parametrize("mode", ["delta", "full"])
@pytest.mark.parametrize("blocks", [slice(None), slice(0, 3)], ids=["all", "some"])
def test_other_weights_after_the_call_fail_the_version(work, mode, blocks):
    """All or some weights are replaced before the version is read, as for an evaluation."""
    config = binding.config(driftless, work / "road", f"mode={mode}")
    trainer, group = Trainer(), OneRank()
    held = {name: tensor.copy() for name, tensor in trainer.weights().items()}
    with (
        driftless.Job(config, "trainer", launched=False) as job,
        driftless.Job(config, "rollout", launched=False) as other,
        driftless.Publisher(job, trainer.source, snapshot="none", group=group) as publisher,
    ):
        target = driftless.MemoryTarget(held, version=0, dtypes={"w": "BF16"})
        receiver = driftless.Receiver(other, target)
        for step in range(1, 3):
            trainer.step(publisher)
            kept = trainer.weight.copy()
            group.go.clear()
            publisher.publish(trainer.source, wait=False)
            trainer.weight[blocks] ^= 3
            group.go.set()
            with pytest.raises(driftless.errors.MismatchError, match="'w'"):
                publisher.wait()
            assert publisher.version == step - 1
            trainer.weight[:] = kept
            publisher.publish(trainer.source, wait=False)
            assert publisher.wait().version == step
            assert receiver.stage(timeout_s=60)
            receiver.commit()
            assert np.array_equal(held["w"], trainer.weight)


def test_a_checkpoint_that_was_loaded_before_the_call_goes_out(run):
    trainer, publisher, follow = run
    trainer.step(publisher, capture=False)
    publisher.publish(trainer.source, wait=False)
    assert any("without capture()" in note for note in publisher.wait().notes)
    follow()


@pytest.mark.parametrize("strides", ["contiguous", "strided"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_rollouts_get_the_bits_that_torch_rounds_to(work, dtype, strides):
    """For every class of numbers, without sweeps: torch's bits of a NaN depend on strides."""
    script = Path(__file__).parent / "sharded" / "torch_rounding.py"
    line = [megatron_jobs.venv_python(), script, work / "road", dtype, strides]
    subprocess.run(line, check=True, timeout=240, env=megatron_jobs.environment())


# --- a whole tensor in a delta, and every kind of receiver ----------------------------------------

LAYOUTS = [
    ("frames", "deltas_zstd"),
    ("frames", "compact"),
    ("flush", "deltas"),
    ("hf_delta", "xor"),
]


class Receivers:
    """Files on a road: `driftless apply`, a rollout with a checkpoint, an agent with a worker."""

    def __init__(self, work, name, layout, encoding, weights):
        self.work = work
        for directory in ("base", "applied", "rollout"):
            write_checkpoint(work / directory, weights)
        self.settings = {
            "road.kind": "shared_fs", "road.shared_fs.dir": work / "road", "road.layout": layout,
            "encoding": encoding, "road.host_shm.name": name, "agent.workers": 1,
            "deadlines.fetch": "60s", "deadlines.connect": "120s", "road.poll_longest": "20ms",
            "full_above_density": 1,
        }  # fmt: skip

    def config(self):
        settings = [f"{key}={value}" for key, value in self.settings.items()]
        return driftless.Config.parse("road: {kind: shared_fs}\n", settings)

    def line(self, command, *arguments, **more):
        settings = {**self.settings, **{key.replace("__", "."): more[key] for key in more}}
        sets = [text for key in settings for text in ("--set", f"{key}={settings[key]}")]
        empty = self.work / "empty.yaml"
        empty.write_text("road: {kind: shared_fs}\n")
        return [COMMAND, *map(str, [command, "--config", empty, "--threads", 1, *sets, *arguments])]

    def start(self):
        self.agent = jobs.start(self.line("agent"))
        shm = {"road__kind": "host_shm", "road__layout": "auto", "encoding": "auto"}
        metrics = self.work / "worker.jsonl"
        save = ["--base", self.work / "base", "--save", self.work / "worker"]
        self.worker = jobs.start(self.line("rollout", *save, metrics__file=metrics, **shm))

    def expect(self, version, weights):
        ok("apply", self.work / "road", "--to", self.work / "applied")
        assert read_checkpoint(self.work / "applied") == weights
        followed = {
            "receiver__target": "checkpoint",
            "receiver__checkpoint_dir": self.work / "rollout",
        }
        rollout = jobs.finish(
            jobs.start(self.line("rollout", "--target-version", version, **followed))
        )
        assert rollout.returncode == 0, rollout.stderr
        assert read_checkpoint(self.work / "rollout") == weights
        metrics = self.work / "worker.jsonl"

        def committed():
            assert self.worker.poll() is None, self.worker.communicate()
            return metrics.exists() and f'"version":{version},' in metrics.read_text().replace(
                " ", ""
            )

        jobs.wait_for(committed, f"version {version} at the worker")


@pytest.fixture
def shm_name():
    made = f"test-{uuid.uuid4().hex[:12]}"
    yield made
    jobs.stop_started()
    shutil.rmtree(Path(f"/dev/shm/driftless-{os.geteuid()}-{made}"), ignore_errors=True)


@pytest.mark.parametrize("layout, encoding", LAYOUTS)
def test_every_receiver_takes_a_tensor_that_is_sent_whole(work, shm_name, layout, encoding):
    """The tensor was written without capture(), or was captured and then skipped."""
    trainer = Trainer()

    def stored():
        kinds = {"w": "BF16", "bias": "F32"}
        return {n: Tensor(kinds[n], t.shape, t.tobytes()) for n, t in trainer.weights().items()}

    receivers = Receivers(work, shm_name, layout, encoding, stored())
    with (
        driftless.Job(receivers.config(), "trainer", launched=False) as job,
        driftless.Publisher(job, trainer.source, snapshot="none") as publisher,
    ):
        receivers.start()
        for number, kind in enumerate(["seen", "unseen", "skipped", "unseen", "seen"], 1):
            if kind == "skipped":
                publisher.capture([(0, trainer.main[:3] + 1)])
                trainer.bias += 1
            else:
                trainer.step(publisher, capture=kind == "seen")
            assert publisher.publish(trainer.source).version == number
            receivers.expect(number, stored())
        publisher.declare_end()
    assert jobs.finish(receivers.agent).returncode == 0
    assert jobs.finish(receivers.worker).returncode == 0
    assert read_checkpoint(work / "worker" / "rollout_00") == stored()
