# SPDX-License-Identifier: Apache-2.0
"""Two engine hosts and a trainer's, which are network namespaces: real vLLM with two ranks on one,
real SGLang with two ranks on the other. Their workers read from the trainer over TCP, and an agent on
each host says when."""

import importlib.util
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import engines
import pytest
from agents import COMMAND, Agent
from environments import REPOSITORY, install_entry_points, python_of, workers_config
from follows import assert_weights
from jobs import wait_for

MPI = REPOSITORY / "tests/mpi"
VERSIONS = 6
PORT = 27315
SPECS = [engines.Spec("vllm_server", "qwen3", 2), engines.Spec("sglang", "qwen3", 2, "float32")]


def namespaces():
    """The module of hosts that are namespaces. The engines' own module has the same name."""
    spec = importlib.util.spec_from_file_location("namespace_hosts", MPI / "hosts.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def work():
    path = Path(tempfile.mkdtemp(prefix="driftless-hosts-"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def network(work):
    made = namespaces()
    why_not = made.why_not()
    if why_not:
        pytest.skip(f"no hosts of namespaces: {why_not}")
    with made.Hosts(3, work) as hosts:
        # This process reaches them through the bridge.
        made.call("ip", "addr", "add", f"{made.NET}.254/24", "dev", f"{hosts.tag}b")
        yield SimpleNamespace(hosts=hosts, address=lambda number: f"{made.NET}.{number}")


def runs_on(network, number):
    """A function that makes of a line one that runs it on a host. Engine and agent of a host share its
    files, as SGLang's driver needs it."""
    return lambda line: ["ip", "netns", "exec", f"{network.hosts.tag}{number}", *line]


def start_engine(network, work, models, spec, number):
    python_of("sglang" if spec.engine == "sglang" else "vllm")
    model = work / "model"
    if not model.exists():
        shutil.copytree(models[spec.kind].path, model)
    pool = SimpleNamespace(
        place=work,
        models={spec.kind: SimpleNamespace(checkpoint=lambda version: str(model / "v00"))},
        entry_points=install_entry_points(work / f"entry_points{number}"),
        log=lambda spec: work / f"{spec.engine}.log",
        address=network.address(number),
        on_host=runs_on(network, number),
    )
    return engines.STARTS[spec.engine](pool, spec)


def start_trainer(network, work, model):
    steps = work / "run"
    steps.mkdir()
    for number in range(VERSIONS + 1):
        (steps / f"step_{number:06d}").symlink_to(f"{model}/v{number:02d}")
    token = work / "token"
    token.write_text("0123456789abcdef0123456789abcdef\n")
    token.chmod(0o600)
    config = (
        f"hub:\n  address: '{network.address(1)}:{PORT}'\n  token_file: {token}\n"
        "deadlines: { connect: 120s }\nanchors: { first: true, every: 4 }\n"
        "road:\n  kind: peer\n  poll_longest: 20ms\n  peer: { carrier: auto, farewell: 60s }\n"
    )
    path = work / "trainer.yaml"
    path.write_text(config)
    line = [COMMAND, "trainer", "--config", path, "--replay", steps, "--rollouts", len(SPECS)]
    line += ["--interval-ms", 2000]
    with open(work / "trainer.log", "w") as log:
        line = [str(word) for word in runs_on(network, 1)(line)]
        trainer = subprocess.Popen(line, stdout=log, stderr=log)
    return trainer, config


def test_engines_on_two_hosts_read_from_a_third(network, work, models):
    started = [start_engine(network, work, models, spec, 2 + i) for i, spec in enumerate(SPECS)]
    agents, trainer = [], None
    try:
        for engine in started:
            engine.wait_ready()
        model = SimpleNamespace(checkpoint=lambda version: str(work / f"model/v{version:02d}"))
        trainer, config = start_trainer(network, work, work / "model")
        run = SimpleNamespace(config=config, model=model)
        own = f"metrics: {{ file: {work}/workers.jsonl }}\n"
        for i, (spec, engine) in enumerate(zip(SPECS, started, strict=True)):
            agents.append(Agent(run, [(spec.maker, engine.url)], work, name=f"agent{i}", workers=own,
                                on_host=runs_on(network, 2 + i)))  # fmt: skip
        for agent, engine in zip(agents, started, strict=True):
            wait_for(lambda: VERSIONS in agent.taken(engine.url) or trainer.poll(), "versions")  # noqa: B023
            assert VERSIONS in agent.taken(engine.url), (work / "trainer.log").read_text() + agent.tail()
            agent.wait_for(engine, VERSIONS)
            assert_weights(engine, model, VERSIONS, tokens=False)
        assert trainer.wait(90) == 0, (work / "trainer.log").read_text()
        read_by_workers(work)
        # Both hosts got the payload over their links.
        print({i: network.hosts.received_bytes(i) for i in (1, 2, 3)}, file=sys.stderr)
    finally:
        for each in [*agents, *started]:
            each.stop()
        if trainer is not None:
            trainer.kill()
            trainer.wait()
        workers_config().unlink(missing_ok=True)


def read_by_workers(work):
    """Two workers on each host read every version over TCP."""
    lines = [json.loads(line) for line in (work / "workers.jsonl").read_text().splitlines()]
    reads = [line for line in lines if "needed_bytes" in line]
    assert {line["carrier"] for line in reads} == {"tcp"}, reads
    last = [line for line in reads if line["version"] == VERSIONS]
    assert len(last) == 2 * len(SPECS), reads
    assert len({line["digest"] for line in last if line.get("digest")}) <= 2, last
