# SPDX-License-Identifier: Apache-2.0
"""`vllm serve <name>`: a real server whose checkpoint is a snapshot in the model hub's cache, made
of links to blobs. Its workers prove their base through the links, and write nothing there."""

import pytest
from agents import Agent
from engines import Spec
from follows import assert_weights

VERSIONS = 5
SPEC = Spec("vllm_server", "qwen3", 1, hub=True)


def blobs_of(place):
    files = (place / "hub").rglob("blobs/*")
    return {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in files}


@pytest.fixture
def agents():
    started = []
    yield started
    for agent in started:
        agent.stop()


def test_an_agent_brings_it_from_version_to_version(started, run_of, place, agents):
    engine, run = started.get(SPEC), run_of(SPEC.kind)
    before = blobs_of(place)
    assert before, "the server was started from the cache"
    agents.append(Agent(run, [("vllm", engine.url)], run.directory.parent))
    for version in range(1, VERSIONS + 1):
        run.publish()
        agents[0].wait_for(engine, version)
        assert_weights(engine, run.model, version)
    assert blobs_of(place) == before
