# SPDX-License-Identifier: Apache-2.0
"""Real vLLM and SGLang with two ranks: each rank proves its share. A flipped bit on one rank is
found, named, and repaired by the next full version; `driftless verify --engine` reports it at
once."""

import json
import subprocess

import pytest
from agents import COMMAND
from engines import SERVERS
from follows import assert_at

PARAMETERS = ("model.layers.1.self_attn.qkv_proj.weight", "model.norm.weight")


def verify(engine, checkpoint=None):
    """(exit code, output)"""
    line = [COMMAND, "verify", "--engine", engine.url, "--json"]
    line += ["--checkpoint", checkpoint] if checkpoint else []
    done = subprocess.run(line, capture_output=True, text=True, timeout=600)
    assert done.returncode in (0, 1, 2), done.stderr
    return done.returncode, json.loads(done.stdout)


def flip(engine, rank, parameter, place=None):
    if hasattr(engine, "probe"):
        engine.probe("flip", rank=rank, parameter=parameter, place=place)
    else:
        engine.rpc("probe_flip", rank=rank, parameter=parameter, place=place)


@pytest.fixture
def engine_and_run(started, run_of, spec):
    """An engine at version 1, with an anchor beside every version."""
    engine, run = started.get(spec), run_of(spec.kind, "anchors.every=1")
    engine.to_base(run.model.checkpoint(0))
    engine.follow(run.config)
    run.publish()
    engine.update()
    return engine, run


@pytest.mark.parametrize("spec", SERVERS, ids=str)
def test_verify_reports_what_the_ranks_hold(engine_and_run):
    engine, run = engine_and_run
    code, output = verify(engine)
    assert code == 0 and output["verdict"] == "proven", output
    assert output["version"] == 1 and output["sum"] == output["digest"]
    assert [rank["rank"] for rank in output["ranks"]] == [0, 1]
    assert engine.driver.prove()["verdict"] == "proven"
    flip(engine, 1, PARAMETERS[0])
    code, output = verify(engine)
    assert code == 1 and output["verdict"] == "differs", output
    assert "rank 1" in output["why"] and PARAMETERS[0] in output["why"], output
    code, output = verify(engine, run.model.checkpoint(1))
    assert code == 1, output
    (place,) = output["places"]
    # The middle of rank 1's q, k and v is the first row of k: row 32 of 64, with 64 elements.
    assert place["tensor"] == "model.layers.1.self_attn.k_proj.weight", place
    assert (place["position"], place["rank"]) == (32 * 64 + 1, 1), place
    assert place["parameter"] == PARAMETERS[0] and "more bits" in place["value"], place
    mended(engine, run)
    assert verify(engine, run.model.checkpoint(run.version))[1]["places"] == []


@pytest.mark.parametrize("parameter", PARAMETERS)
@pytest.mark.parametrize("rank", (0, 1))
@pytest.mark.parametrize("spec", SERVERS, ids=str)
def test_a_flipped_bit_is_found_by_the_next_version(engine_and_run, rank, parameter):
    engine, run = engine_and_run
    flip(engine, rank, parameter)
    mended(engine, run)


def mended(engine, run):
    """Publishes versions until all ranks hold one, to the bit, and serve it."""
    from driftless.engines.drive import EngineError

    for _ in range(3):
        run.publish()
        try:
            done = engine.update()
        except EngineError as refused:
            print(refused)
            continue
        assert_at(engine, run.model, done["version"])
        assert verify(engine)[0] == 0
        return
    raise AssertionError("the engine was not brought back")
