# SPDX-License-Identifier: Apache-2.0
"""Two ranks of real vLLM, and faults between them. Each test ends with both ranks at one version,
and the next version succeeds."""

import os
import signal

import pytest
from engines import Spec
from follows import assert_at, assert_weights
from hosts import HostError

SPEC = Spec("vllm", "qwen3", 2)
TAKEN_BACK = "version 2 was refused: .*; all ranks hold version 1 .* again"


@pytest.fixture
def mode():
    return "delta"


@pytest.fixture
def pair(started, run_of, mode):
    """The engine with the base's weights, following this test's run."""
    engine = started.get(SPEC)
    if not hasattr(engine, "pids"):  # read before replies get out of step
        engine.pids = engine.rpc("probe_pid")
    run = run_of("qwen3", f"mode={mode}")
    engine.to_base(run.model.checkpoint(0))
    assert engine.follow(run.config) == 0
    return engine, run


@pytest.mark.parametrize("mode", ("delta", "full"))
@pytest.mark.parametrize("rank", (0, 1))
@pytest.mark.parametrize("point", ("before", "during"))
def test_a_rank_that_fails_its_commit(pair, rank, point):
    engine, run = pair
    run.publish()
    engine.update()
    run.publish()
    engine.rpc("probe_fault", rank=rank, point=point)
    with pytest.raises(HostError, match=TAKEN_BACK) as refused:
        engine.update()
    assert f"rank {rank}:" in str(refused.value) and f"rank {1 - rank}:" not in str(refused.value)
    assert_at(engine, run.model, 1)
    assert engine.update()["version"] == 2, "the same version, without the fault"
    assert_at(engine, run.model, 2)
    run.publish()
    assert engine.update()["version"] == 3
    assert_at(engine, run.model, 3)


@pytest.mark.parametrize("rank", (0, 1))
def test_a_rank_that_fails_after_its_commit(pair, rank):
    """The commit holds, and the later failure is reported."""
    engine, run = pair
    run.publish()
    engine.rpc("probe_fault", rank=rank, point="after")
    done = engine.update()
    assert done["version"] == 1 and "injected after" in done["replies"][rank]["error"]
    assert_at(engine, run.model, 1)
    run.publish()
    assert engine.update()["version"] == 2
    assert_at(engine, run.model, 2)


def test_another_base(pair, run_of):
    """The engine holds the base of another run: every rank refuses, and nothing is written."""
    engine, run = pair
    run.publish()
    engine.update()
    other = run_of("qwen3_tied")
    with pytest.raises(HostError, match="wrong_layout|wrong_run|wrong_base"):
        engine.follow(other.config)
    assert_weights(engine, run.model, 1)
    assert engine.follow(run.config) == 1
    run.publish()
    assert engine.update()["version"] == 2
    assert_at(engine, run.model, 2)


@pytest.mark.parametrize("rank", (1, 0))
def test_replies_that_are_out_of_step(pair, rank):
    """A foreign RPC raises on one rank only. From then on that rank's replies belong to the call
    before: they are rejected, and requested again."""
    engine, run = pair
    with pytest.raises(HostError, match="raises"):
        engine.rpc("probe_raise", rank=rank)
    run.publish()
    assert engine.update()["version"] == 1
    assert [reply["version"] for reply in engine.replies()] == [1, 1]


def test_a_killed_worker(pair, started):
    """The last test: the engine cannot continue, and reports that instead of serving half a
    version."""
    engine, run = pair
    run.publish()
    os.kill(engine.pids[1], signal.SIGKILL)
    with pytest.raises(HostError, match="the engine does not report what it holds"):
        for _ in range(3):  # vLLM may need a moment to notice
            engine.update(timeout_s=10)
    started.drop(SPEC)
    following = started.get(SPEC)  # a new engine catches up
    assert following.follow(run.config) == 0
    assert following.update()["version"] == run.version
    assert_at(following, run.model, run.version)
