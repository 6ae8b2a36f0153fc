# SPDX-License-Identifier: Apache-2.0
"""driftless.Job(on_record=): a Python function gets the records of versions and engines. Also the
status server inside a Python trainer."""

import json
import os
import subprocess
import sys
import threading
import urllib.request

import pytest

import binding
from ports import free_port
from test_agent import Engine

driftless = binding.driftless()


@pytest.fixture
def first(rng):
    return binding.weights(rng)


class Run:
    """A trainer and a receiver in this process, each with a list of its records."""

    def __init__(self, work, first, *settings, on_record=None):
        self.made, self.taken = [], []
        config = f"road: {{kind: shared_fs, shared_fs: {{ dir: {work}/road }}}}"
        self.config = driftless.Config.parse(config, list(settings))
        self.trainer = driftless.Job(
            self.config, "trainer", launched=False, on_record=on_record or self.made.append
        )
        self.publisher = driftless.Publisher(self.trainer, binding.Source(driftless, first))

    def receive(self, first):
        self.rollout = driftless.Job(self.config, "rollout", launched=False, on_record=self.taken.append)
        self.target = driftless.OwnedTarget()
        return driftless.Receiver(self.rollout, self.target, id="one")

    def publish(self, weights):
        return self.publisher.publish(binding.Source(driftless, weights))


def test_records_are_flat_and_come_on_the_callers_thread(work, rng, first):
    threads = []
    records = []

    def on_record(record):
        threads.append(threading.get_ident())
        records.append(record)

    run = Run(work, first, "anchors.first=true", on_record=on_record)
    assert records == []
    report = run.publish(binding.step(rng, first))
    assert [record["version"] for record in records] == [1]
    run.publish(binding.step(rng, first))
    assert [record["version"] for record in records] == [1, 2]
    assert set(threads) == {threading.get_ident()}
    assert records[0]["changed_units"] == report.changed_units and records[0]["role"] == "trainer"
    for record in records:
        assert all(isinstance(value, (str, int, float, bool)) for value in record.values()), record
        assert "most_changed" not in record
    with run.receive(first) as receiver:
        while receiver.stage(2.0):
            receiver.commit()
            assert run.taken[-1]["version"] == receiver.version
    assert run.taken[-1]["role"] == "rollout" and run.taken[-1]["version"] == 2
    run.trainer.close()


class Written:
    """Stands in for wandb and for TensorBoard's SummaryWriter: keeps what is written."""

    def __init__(self):
        self.values = []

    def log(self, values):
        assert all(isinstance(value, (int, float)) for value in values.values()), values
        self.values.append(values)

    def add_scalar(self, tag, value, step):
        assert isinstance(value, (int, float)) and isinstance(step, int)
        self.values.append({tag: value, "step": step})


@pytest.mark.parametrize(("title", "name"), [("Weights & Biases", "wandb"), ("TensorBoard", "writer")])
def test_the_pages_examples_take_real_records(work, rng, first, title, name):
    page = (binding.REPOSITORY / "docs/operate/metrics.md").read_text()
    code = page.split(f"{title}:\n\n```python\n")[1].split("```")[0]
    assert len(code.strip().splitlines()) <= 3
    written = Written()
    names = {name: written}
    exec(code, names)  # of our own page
    run = Run(work, first, on_record=names["on_record"])
    report = run.publish(binding.step(rng, first))
    kept = {key: value for values in written.values for key, value in values.items()}
    assert kept["driftless/wire_bytes"] == report.wire_bytes and 0 < kept["driftless/density"] < 1
    assert kept["driftless/total_ms"] > 0
    run.trainer.close()


@pytest.mark.parametrize("failure", [RuntimeError("not today"), TypeError("x"), SystemExit(3)])
def test_its_exception_is_printed_once_and_stops_nothing(work, rng, first, failure, monkeypatch, capfd):
    calls, printed = [], []
    monkeypatch.setattr(sys, "unraisablehook", lambda raised: printed.append(raised.exc_value))

    def on_record(record):
        calls.append(record)
        raise failure

    run = Run(work, first, on_record=on_record)
    for version in range(1, 5):
        assert run.publish(binding.step(rng, first)).version == version
    run.trainer.close()
    assert len(calls) == 4 and printed == [failure]
    # The log counts a line that an earlier case of this process wrote within 30 s.
    assert capfd.readouterr().err.count("on_record raised") <= 1


def test_the_record_of_a_background_version_comes_with_the_next_call(work, rng, first):
    records = []
    config = f"road: {{kind: shared_fs, shared_fs: {{ dir: {work}/road }}}}\nsnapshot: none"
    job = driftless.Job(driftless.Config.parse(config, []), "trainer", launched=False, on_record=records.append)
    source = binding.Source(driftless, first)
    publisher = driftless.Publisher(job, source)
    publisher.doubt()
    publisher.publish(source, wait=False)
    publisher.wait()
    assert [record["version"] for record in records] == [1]
    publisher.publish(source, wait=False)
    job.close()
    assert [record["version"] for record in records] == [1, 2]


def test_engines_that_are_notified_have_records(work, rng, first):
    base = work / "base"
    base.mkdir()
    engine = Engine(base)
    settings = ["road.layout=hf_delta", f"engines[0].url={engine.url}", "engine_calls.retries=0"]
    settings += ["engines[0].action=pull_weights", f"engines[0].local_checkpoint_dir={base}"]
    port = free_port()
    run = Run(work, first, *settings, f"monitor.address={port}")
    run.publish(binding.step(rng, first))
    failures = run.publisher.tell_engines()
    (record,) = [each for each in run.made if "engine" in each]
    assert record["engine"] == engine.url and record["goal"] == 1
    assert (record["status"] == "ok") == (failures == []) == (record["version"] == 1)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/status.json", timeout=60) as response:
        shown = json.load(response)
    assert [each["engine"] for each in shown["engines"]] == [engine.url]
    run.trainer.close()


FORKS = """
import os, sys, urllib.request
import numpy as np
sys.path.insert(0, {package!r})
import driftless
class Source:
    specs = [driftless.TensorSpec("w", "F32", (8,))]
    array = np.zeros(8, "<f4")
    def tensors(self): return self.specs
    def visit(self): yield [(0, self.array)]
config = driftless.Config.parse("road: {{kind: shared_fs, shared_fs: {{ dir: {road} }} }}", ["monitor.address={port}"])
job = driftless.Job(config, "trainer", launched=False)
publisher = driftless.Publisher(job, Source())
ask = lambda: urllib.request.urlopen("http://127.0.0.1:{port}/ready", timeout=60).status
assert ask() == 200
children = []
for leave in (os._exit, sys.exit):
    child = os.fork()
    if child == 0:
        leave(0)
    children.append(child)
for child in children:
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert ask() == 200
publisher.publish(Source())
job.close()
print("closed")
"""


def test_a_child_that_was_forked_ends_and_leaves_the_server_alone(work):
    text = FORKS.format(package=str(binding.PACKAGE), road=str(work / "road"), port=free_port())
    result = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, timeout=300, env=os.environ
    )
    assert result.returncode == 0 and result.stdout == "closed\n", result.stderr
