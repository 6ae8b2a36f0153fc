# SPDX-License-Identifier: Apache-2.0
"""When a real engine is resumed, and when it stays paused: two ranks, with faults in the workers
and between driver and server. It is resumed only if all ranks hold one version. A failure before
any write resumes it; after any other failure it stays paused, and the error says so."""

import contextlib
import time

import pytest
from agents import Agent
from engines import SERVERS as SPECS
from follows import assert_at, assert_weights, driver_of, proxies

PAUSED = "left paused"


@pytest.fixture
def proxied(started, run_of):
    """An engine at the base of a run, behind a proxy."""
    with proxies(started, run_of) as make:
        yield make


@pytest.fixture
def agent_of():
    agents = []

    def start(spec, run, proxy):
        """All agents have the same name: each replaces the one before. It logs every attempt."""
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


def wait_for_words(agent, words, timeout_s=600):
    deadline = time.monotonic() + timeout_s
    while words not in agent.tail():
        assert agent.popen.poll() is None, agent.tail()
        assert time.monotonic() < deadline, agent.tail()
        time.sleep(0.1)


def in_commit(path):
    return lambda call: call.commit is not None and call.path == path


# --- failures between pause and resume ------------------------------------------------------------


@pytest.mark.parametrize("step", ("pause", "begin"))
@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_what_fails_before_a_write_resumes(proxied, spec, step):
    from driftless.engines.drive import EngineError

    proxy, run = proxied(spec)
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
def test_a_failure_after_a_write_is_reported(proxied, spec, step):
    """The error also says whether the engine is paused, and the next update repairs it. If only the
    last call of an update fails, the update counts if the engine has the label by then: its weights
    were proven before."""
    from driftless.engines.drive import EngineError

    proxy, run = proxied(spec)
    driver = driver_of(spec, run, proxy)
    run.publish()
    assert driver.update().version == 1
    assert_at(proxy.engine, run.model, 1)  # its caches hold results of version 1
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
    assert driver.update(timeout_s=0) is None, "it holds the version already"
    assert step == "finish" or proxy.paths.clear in proxy.calls
    assert serves(proxy.engine, 60)
    assert_weights(proxy.engine, run.model, 2)
    run.publish()
    assert driver.update().version == 3
    assert_at(proxy.engine, run.model, 3)


# --- an engine that an earlier driver left --------------------------------------------------------


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_an_agent_whose_first_question_fails_resumes_no_ranks_that_differ(proxied, agent_of, spec):
    proxy, run = proxied(spec)
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
        wait_for_words(agent, "does not report what it holds")
        assert not serves(proxy.engine, 3)
    assert paths.resume not in proxy.calls
    agent.wait_for(proxy, 2)
    assert serves(proxy.engine, 60)
    assert_weights(proxy.engine, run.model, 2)


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_a_commit_whose_undo_failed_is_not_resumed(proxied, agent_of, place, spec):
    """Neither the agent resumes it, nor the agent's end, nor the next agent."""
    proxy, run = proxied(spec)
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
def test_torn_ranks_that_agree_are_no_version(proxied, place, spec):
    from driftless.engines.drive import EngineError

    proxy, run = proxied(spec)
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
