# SPDX-License-Identifier: Apache-2.0
"""A real server is killed and restarted under a living agent or driver: it never gets the label of
the dead server's version, and its label and weights agree from then on."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from agents import Agent
from engines import SERVERS as SPECS
from follows import assert_at, assert_weights, driver_of, proxies


@pytest.fixture
def proxied(started, run_of):
    """An engine at the base of a run, a proxy in front of it, and a function that restarts it."""

    def restart(spec):
        started.drop(spec)
        return started.get(spec)

    with proxies(started, run_of) as make:
        yield make, restart


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_under_an_agent_that_has_nothing_to_do(proxied, spec):
    make, restart = proxied
    proxy, run = make(spec)
    agent = Agent(run, [(spec.maker, proxy.url)], run.directory.parent)
    try:
        for version in (1, 2):
            run.publish()
            agent.wait_for(proxy, version)
        engine = restart(spec)
        assert engine.weight_version() == "default"
        assert_weights(engine, run.model, 0)
        proxy.engine = engine  # the agent notices the new process even without a new version
        deadline = time.monotonic() + 600
        while engine.weight_version() == "default":
            assert time.monotonic() < deadline, agent.tail()
            time.sleep(0.1)
        assert engine.weight_version() == "2"
        assert_weights(engine, run.model, 2)
        run.publish()
        agent.wait_for(proxy, 3)
        assert_weights(engine, run.model, 3)
    finally:
        agent.stop()


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_between_a_commit_and_its_label(proxied, spec):
    """The call that sets the label reaches the new process."""
    from driftless.engines.drive import EngineError

    make, restart = proxied
    proxy, run = make(spec)
    driver = driver_of(spec, run, proxy, timeout_s=600)
    run.publish()
    assert driver.update().version == 1
    label = proxy.hold(lambda call: call.body.get("weight_version") == "2")
    run.publish()
    with ThreadPoolExecutor() as pool:
        updating = pool.submit(driver.update)
        assert label.reached.wait(60)
        engine = proxy.engine = restart(spec)
        label.release()
        with pytest.raises(EngineError):
            updating.result(300)
    assert engine.weight_version() == "default"
    assert_weights(engine, run.model, 0, tokens=False)  # it may be paused
    engine.driver = driver
    assert driver.update().version == 2
    assert_at(engine, run.model, 2)
