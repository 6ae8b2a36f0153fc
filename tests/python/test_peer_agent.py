# SPDX-License-Identifier: Apache-2.0
"""An agent over the peer road: workers and engines that join during a run, their readiness, and the
fallback."""

import json
import shutil

import numpy as np
import pytest
from jobs import CONFIGS, ended, finish, make_run, need, stop_started, wait_for
from ports import free_port
from test_agent import Engine, Host, name  # noqa: F401
from test_monitor import answers, ask
from test_peer import start_trainer, versions

STEPS = 16


@pytest.fixture(autouse=True)
def processes():
    need("status_server")
    yield
    stop_started()


class PeerHost(Host):
    """The host of an agent that reads from trainer ranks. The ring is short, so a late reader needs
    an anchor."""

    def __init__(self, work, name):  # noqa: F811
        need("peer")
        super().__init__(work, name)
        self.config = CONFIGS / "peer.yaml"
        token = work / "token"
        token.write_text("0123456789abcdef0123456789abcdef\n")
        token.chmod(0o600)
        self.set(**{"hub.address": f"127.0.0.1:{free_port()}", "hub.token_file": token})
        self.set(**{"road.ring_versions": "2", "anchors.every": "2", "deadlines.connect": "30s"})
        self.set(**{"metrics.file": work / "{role}.jsonl"})

    def with_engine(self, engine, kind="vllm"):
        shutil.copytree(self.work / "run/step_000000", self.work / "local")
        self.set(**{"agent.hand_over": "checkpoint", "agent.checkpoint_dir": self.work / "local"})
        self.set(**{"engine_calls.retry_wait": "20ms", "engine_calls.retries": "0", "agent.engine_look": "200ms"})
        self.set(**{"engines[0].url": engine.url, "engines[0].kind": kind})

    def train(self, *arguments):
        return start_trainer(self, self.work, *arguments)

    def records(self):
        path = self.work / "agent.jsonl"
        lines = map(json.loads, path.read_text().splitlines()) if path.exists() else ()
        return [line for line in lines if "anchor" in line]


@pytest.fixture
def host(work, name):  # noqa: F811
    return PeerHost(work, name)


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_an_engine_that_joins_late_takes_the_newest_anchor_and_is_ready_only_then(host, work, kind):
    history = make_run(work / "run", np.random.default_rng(1), STEPS)
    engine, port = Engine(work / "run/step_000000"), free_port()
    host.with_engine(engine, kind)
    trainer = host.train("--interval-ms", 500)
    wait_for(lambda: 3 in versions(work / "trainer.jsonl"), "version 3")
    engine.answering.clear()
    agent = host.start_agent("--set", f"monitor.address={port}")
    wait_for(lambda: answers(port)() and host.records(), "a version at the agent")
    assert ask(port, "/ready").status == 503
    engine.answering.set()
    wait_for(lambda: ask(port, "/ready").status == 200, "a ready engine")
    ready = ask(port, "/ready").json
    assert ready["version"] >= 2 and ready["lag"] <= 1 and len(ready["run"]) == 32
    assert host.records()[0]["anchor"]
    assert finish(trainer).returncode == 0
    assert ended(agent)["version"] == STEPS
    assert engine.loaded[-1] == history[STEPS]


def test_an_engine_that_falls_behind_is_not_ready(host, work):
    make_run(work / "run", np.random.default_rng(2), STEPS)
    engine, port = Engine(work / "run/step_000000"), free_port()
    host.with_engine(engine)
    host.set(**{"agent.max_lag": 1})
    agent = host.start_agent("--set", f"monitor.address={port}")
    trainer = host.train("--interval-ms", 500, "--rollouts", 1)
    wait_for(lambda: answers(port)() and ask(port, "/ready").status == 200, "a ready agent")
    engine.broken = {"/collective_rpc": 1000, "/pause": 1000}
    wait_for(lambda: ask(port, "/ready").status == 503, "the engine to fall behind")
    engine.broken = {}
    wait_for(lambda: ask(port, "/ready").status == 200, "the engine to be back")
    assert finish(trainer).returncode == 0
    assert finish(agent).returncode == 0


def test_workers_follow_through_an_agent_and_its_fallback(host, work):
    """No version fits into the ring."""
    history = make_run(work / "run", np.random.default_rng(3), 4, rows=4096, fraction=0.9)
    host.set(**{"road.ring_size": "64KiB", "road.peer.fallback": "shared_fs", "agent.workers": 2})
    agent = host.start_agent()
    workers = [host.start_worker(i) for i in range(2)]
    trainer = host.train("--interval-ms", 100, "--rollouts", 1)
    published = finish(trainer)
    assert published.returncode == 0, published.stderr
    for number, worker in enumerate(workers):
        assert ended(worker)["version"] == 4
        assert host.saved(number) == history[4]
    result = finish(agent)
    assert result.returncode == 0, result.stderr
    for text in (published.stderr, result.stderr):
        assert text.count("[P2P]") == 1, text
    assert host.records()[-1]["fallback"] == "shared_fs"
