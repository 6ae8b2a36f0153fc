# SPDX-License-Identifier: Apache-2.0
"""When a real engine is resumed, and when it stays paused: two ranks, faults at the workers' door and
between the driver and the server. It is resumed only if all ranks hold one version; what fails before
anything is written resumes it; else it stays paused, and the error says so."""

import contextlib
import time

import pytest
from agents import Agent
from engines import SERVERS as SPECS
from follows import assert_at, assert_weights, driver_of, proxies

PAUSED = "left paused"


@pytest.fixture
def behind(started, run_of):
    """An engine at the base of a run, and a proxy before it."""
    with proxies(started, run_of) as make:
        yield make


@pytest.fixture
def agent_of():
    agents = []

    def start(spec, run, proxy):
        """One name: the next is the first one, started anew. It tells of every try."""
        settings = ("retries: 0", "stage_timeout: 5s")
        engines = [(spec.maker, proxy.url)]
        agents.append(Agent(run, engines, run.directory.parent, settings=settings))
        return agents[-1]

    yield start
    for agent in agents:
        agent.stop()


def fault(proxy, **what):
    ask = getattr(proxy.engine, "probe", None)
    return ask("fault", **what) if ask else proxy.engine.rpc("probe_fault", **what)


def serves(engine, patience_s):
    prompt = [5, 17, 42]
    options = {"temperature": 0, "max_tokens": 1, "max_new_tokens": 1, "ignore_eos": True}
    given = {"token_ids": prompt, "path": "/inference/v1/generate", "drop": "max_new_tokens"}
    if hasattr(engine, "probe"):
        given = {"input_ids": prompt, "path": "/generate", "drop": "max_tokens"}
    options.pop(given.pop("drop"))
    try:
        engine.call(given.pop("path"), {**given, "sampling_params": options}, timeout_s=patience_s)
    except OSError as problem:
        assert "timed out" in str(problem), problem
        return False
    return True


def wait_for_words(agent, words, timeout_s=120):
    deadline = time.monotonic() + timeout_s
    while words not in agent.tail():
        assert agent.popen.poll() is None, agent.tail()
        assert time.monotonic() < deadline, agent.tail()
        time.sleep(0.1)


def in_commit(path):
    return lambda call: call.commit is not None and call.path == path


# --- what fails between the pause and the resume --------------------------------------------------


@pytest.mark.parametrize("step", ("pause", "begin"))
@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_what_fails_before_a_write_resumes(behind, spec, step):
    from driftless.engines.drive import EngineError

    proxy, run = behind(spec)
    driver = driver_of(spec, run, proxy)
    run.publish()
    assert driver.update().version == 1
    run.publish()
    del proxy.calls[:]
    with (
        proxy.refuse(in_commit(getattr(proxy.paths, step))),
        pytest.raises(EngineError, match="injected by the proxy") as refused,
    ):
        driver.update()
    assert not refused.value.left_paused and PAUSED not in str(refused.value)
    assert proxy.calls[-1] == proxy.paths.resume
    assert serves(proxy.engine, 60)
    assert_at(proxy.engine, run.model, 1)
    assert driver.update().version == 2, "the same version, without the fault"
    assert_at(proxy.engine, run.model, 2)


@pytest.mark.parametrize("step", ("finish", "clear", "resume"))
@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_what_fails_after_a_write_is_told(behind, spec, step):
    """Whether the engine is then paused, too; and the next update has it all mended. An update whose
    end is refused counts if the engine has the label by then: its weights were proven before."""
    from driftless.engines.drive import EngineError

    proxy, run = behind(spec)
    driver = driver_of(spec, run, proxy)
    run.publish()
    assert driver.update().version == 1
    assert_at(proxy.engine, run.model, 1)  # its caches hold what version 1 made
    run.publish()
    paused = False
    with proxy.refuse(in_commit(getattr(proxy.paths, step))):
        try:
            assert driver.update().version == 2 and step == "finish"
            assert proxy.engine.weight_version() == "2"
        except EngineError as problem:
            paused = problem.left_paused
            assert paused == (PAUSED in str(problem)) and problem.versions == [2, 2], problem
    assert paused or step != "resume"
    assert serves(proxy.engine, 3 if paused else 60) != paused
    del proxy.calls[:]
    assert driver.update(timeout_s=0) is None, "it holds the version"
    assert step == "finish" or proxy.paths.clear in proxy.calls
    assert serves(proxy.engine, 60)
    assert_weights(proxy.engine, run.model, 2)
    run.publish()
    assert driver.update().version == 3
    assert_at(proxy.engine, run.model, 3)


# --- what a driver before this one left -----------------------------------------------------------


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_an_agent_whose_first_question_fails_resumes_no_ranks_that_differ(behind, agent_of, spec):
    proxy, run = behind(spec)
    paths = proxy.paths
    agent = agent_of(spec, run, proxy)
    run.publish()
    agent.wait_for(proxy, 1)
    fault(proxy, rank=1, point="before")
    proof = proxy.hold(lambda call: in_commit(paths.ask)(call) and paths.write in call.commit)
    run.publish()
    assert proof.reached.wait(60), agent.tail()
    agent.popen.kill()  # rank 0 is at version 2, rank 1 at version 1
    agent.popen.wait()
    proof.release(forward=False)
    del proxy.calls[:]
    with proxy.refuse(lambda call: call.path == paths.ask):
        agent = agent_of(spec, run, proxy)
        wait_for_words(agent, "does not say what it holds")
        assert not serves(proxy.engine, 3)
    assert paths.resume not in proxy.calls
    agent.wait_for(proxy, 2)
    assert serves(proxy.engine, 60)
    assert_weights(proxy.engine, run.model, 2)


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_a_commit_whose_undo_failed_is_not_resumed(behind, agent_of, place, spec):
    """By nobody: not by the agent, not when it ends, not by the next one."""
    proxy, run = behind(spec)
    agent = agent_of(spec, run, proxy)
    run.publish()
    agent.wait_for(proxy, 1)
    broken = place / "torn"
    broken.touch()
    fault(proxy, rank=0, point="torn", path=str(broken))
    run.publish()
    wait_for_words(agent, PAUSED)
    assert "rank 0 holds parts of two versions" in agent.tail()
    del proxy.calls[:]
    agent.stop()
    agent = agent_of(spec, run, proxy)
    wait_for_words(agent, PAUSED)
    assert not serves(proxy.engine, 3)
    assert proxy.paths.resume not in proxy.calls
    broken.unlink()
    run.publish()
    agent.wait_for(proxy, 3)
    assert serves(proxy.engine, 60)
    assert_weights(proxy.engine, run.model, 3)


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_torn_ranks_that_agree_are_no_version(behind, place, spec):
    from driftless.engines.drive import EngineError

    proxy, run = behind(spec)
    driver = driver_of(spec, run, proxy)
    run.publish()
    assert driver.update().version == 1
    broken = place / "all-torn"
    broken.touch()
    for rank in (0, 1):
        fault(proxy, rank=rank, point="torn", path=str(broken))
    run.publish()
    with pytest.raises(EngineError, match=PAUSED) as failed:
        driver.update()
    assert failed.value.left_paused and failed.value.versions == [-1, -1]
    del proxy.calls[:]
    with contextlib.suppress(EngineError):
        driver.close()
    with pytest.raises(EngineError, match="could not be undone|parts of two versions"):
        driver_of(spec, run, proxy)
    assert not serves(proxy.engine, 3)
    assert proxy.paths.resume not in proxy.calls
    broken.unlink()
    assert driver.update().version == 2
    assert serves(proxy.engine, 60)
    assert_at(proxy.engine, run.model, 2)
