# SPDX-License-Identifier: Apache-2.0
"""A real engine outlives a run: its label names a version of that run. An agent compares run,
version and digest together, so it never takes those weights for a version of the next run."""

import shutil
import time

import pytest
from agents import Agent
from engines import SERVERS as SPECS
from follows import assert_weights



@pytest.fixture
def outlived(started, run_of):
    """An engine that holds version 3 of an ended run, with the label "2"; and the next run."""
    agents = []

    def start(spec, run, engine, **options):
        kind = "sglang" if spec.engine == "sglang" else "vllm"
        agents.append(Agent(run, [(kind, engine.url)], run.directory.parent, **options))
        return agents[-1]

    def make(spec, checkpoint=None):
        engine, over = started.get(spec), run_of(spec.kind)
        engine.to_base(over.model.checkpoint(0))
        first = start(spec, over, engine, name="first", checkpoint=checkpoint)
        for version in (1, 2, 3):
            over.publish()
            first.wait_for(engine, version)
        first.stop()
        label = {"new_version": "2"}
        if spec.engine == "sglang":
            label["abort_all_requests"] = False
        engine.call("/update_weight_version", label)
        assert engine.weight_version() == "2"
        following = run_of(spec.kind)
        following.publish()
        following.publish()
        return engine, over, following, start

    yield make
    for agent in agents:
        agent.stop()


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_its_weights_are_not_taken_for_the_next_runs(outlived, spec):
    engine, over, following, start = outlived(spec)
    agent = start(spec, following, engine, name="second")
    deadline = time.monotonic() + 600
    while "wrong_run" not in agent.tail():
        assert time.monotonic() < deadline, agent.tail()
        time.sleep(0.2)
    assert agent.taken(engine.url) == []
    assert_weights(engine, over.model, 3)
    engine.to_base(following.model.checkpoint(0))  # as after a restart of the engine
    agent.wait_for(engine, 2)
    assert_weights(engine, following.model, 2)


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_a_key_hands_it_to_the_next_run(outlived, spec):
    """From version 3 of one run to version 2 of the other, by a full version; then it follows."""
    engine, _, following, start = outlived(spec)
    following.publisher.publish_anchor()
    key = f"take_over: '{following.publisher.run}'"
    agent = start(spec, following, engine, name="second", settings=[key])
    agent.wait_for(engine, 2)
    assert_weights(engine, following.model, 2)
    following.publish()
    agent.wait_for(engine, 3)
    assert_weights(engine, following.model, 3)


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_an_engine_that_reads_files_loads_all_of_them(outlived, started, place, spec):
    checkpoint = place / f"outlived-{spec}"
    shutil.rmtree(checkpoint, ignore_errors=True)
    engine, _, following, start = outlived(spec, checkpoint=checkpoint)
    shutil.rmtree(checkpoint)
    agent = start(spec, following, engine, name="second", checkpoint=checkpoint)
    agent.wait_for(engine, 2)
    assert_weights(engine, following.model, 2)
    if spec.engine == "vllm_server":
        agent.stop()
        started.drop(spec)  # a reload replaces its parameters
