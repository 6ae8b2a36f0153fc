# SPDX-License-Identifier: Apache-2.0
"""`driftless agent` drives real engines: through shared memory, and by a checkpoint on disk."""

import shutil

import pytest
from agents import Agent
from engines import Spec
from follows import assert_weights

VERSIONS = 10
SGLANG = [
    Spec("sglang", "qwen3", tp, dtype) for tp in (1, 2) for dtype in ("bfloat16", "float32")
]
SERVED = [
    Spec("vllm_server", "qwen3", 2),
    Spec("vllm_server", "qwen3_moe", 1),
    Spec("vllm_server", "qwen3_tied", 1),
    *SGLANG,
]


@pytest.fixture
def driven(started, run_of):
    """An engine at the base of a run, and an agent that drives it."""
    agents = []

    def make(spec, **options):
        engine, run = started.get(spec), run_of(spec.kind)
        engine.to_base(run.model.checkpoint(0))
        kind = "sglang" if spec.engine == "sglang" else "vllm"
        agents.append(Agent(run, [(kind, engine.url)], run.directory.parent, **options))
        return engine, run, agents[-1]

    yield make
    for agent in agents:
        agent.stop()


@pytest.mark.parametrize("spec", SERVED, ids=str)
def test_ten_versions_by_shared_memory(driven, spec):
    engine, run, agent = driven(spec)
    for version in range(1, VERSIONS + 1):
        run.publish()
        agent.wait_for(engine, version)
        assert_weights(engine, run.model, version)


@pytest.mark.parametrize("spec", [SERVED[0], SERVED[-1]], ids=str)
def test_ten_versions_that_the_workers_read_for_themselves(driven, spec):
    """The workers use the configuration with which the engine was started; the agent starts
    updates."""
    engine, run, agent = driven(spec, workers=True)
    for version in range(1, VERSIONS + 1):
        run.publish()
        agent.wait_for(engine, version)
        assert_weights(engine, run.model, version)


@pytest.mark.parametrize("spec", [SERVED[0], SERVED[-1]], ids=str)
def test_ten_versions_by_a_checkpoint(driven, started, spec, place):
    """For an engine without our receiver: it reloads the patched directory."""
    checkpoint = place / "patched"
    shutil.rmtree(checkpoint, ignore_errors=True)
    engine, run, agent = driven(spec, checkpoint=checkpoint)
    for version in range(1, VERSIONS + 1):
        run.publish()
        agent.wait_for(engine, version)
        assert_weights(engine, run.model, version)
    if spec.engine == "vllm_server":
        agent.stop()
        started.drop(spec)  # a reload replaces its parameters


@pytest.mark.parametrize("spec", SERVED[:1], ids=str)
def test_a_second_agent_is_refused(driven, spec):
    """It has the first agent's name; the engine keeps following the first."""
    engine, run, agent = driven(spec)
    run.publish()
    agent.wait_for(engine, 1)
    second = Agent(run, [("vllm", engine.url)], run.directory.parent, name="agent")
    try:
        assert second.popen.wait(60) != 0
    finally:
        second.stop()
    run.publish()
    agent.wait_for(engine, 2)
    assert_weights(engine, run.model, 2)
