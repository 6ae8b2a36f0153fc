# SPDX-License-Identifier: Apache-2.0
"""Two ranks of real vLLM or SGLang, whose weights another client loads or moves between two
versions. The next update continues from the actual weights, without a restart. Sleep and expert
rebalancing need a GPU: a toy engine tests them (tests/python/engines_toy/checks_moving.py and
checks_eplb.py)."""

import pytest
from engines import Spec
from follows import assert_at

SPEC = Spec("vllm", "qwen3", 2)
PARAMETER = "model.layers.1.self_attn.qkv_proj.weight"


@pytest.fixture
def pair(started, run_of):
    """The engine at version 2 of this test's run."""
    engine, run = started.get(SPEC), run_of("qwen3", "anchors.every=1")
    engine.to_base(run.model.checkpoint(0))
    assert engine.follow(run.config) == 0
    for _ in range(2):
        run.publish()
        engine.update()
    return engine, run


def taken(engine, run, word):
    """Updates to the next two versions; before the first, every rank reports what it found."""
    run.publish()
    done = engine.update()
    assert done["version"] == 3
    for reply in done["replies"]:
        assert any(word in text for text in reply["moved"]), reply
    assert_at(engine, run.model, 3)
    run.publish()
    done = engine.update()
    assert done["version"] == 4 and not any(reply["moved"] for reply in done["replies"])
    assert_at(engine, run.model, 4)


def test_reload_weights_from_the_base(pair):
    engine, run = pair
    engine.rpc("reload_weights")
    taken(engine, run, "load_weights() was called by other code")


def test_reload_weights_of_another_checkpoint(pair):
    """The weights are no version of the run: an anchor comes."""
    engine, run = pair
    engine.rpc("reload_weights", weights_path=run.model.checkpoint(7))
    taken(engine, run, "load_weights() was called by other code")
    engine.rpc("reload_weights", weights_path=run.model.checkpoint(0))


def test_a_rebound_parameter(pair):
    engine, run = pair
    engine.rpc("probe_rebind", parameter=PARAMETER)
    taken(engine, run, f"'{PARAMETER}' is another tensor now")


@pytest.mark.parametrize("spec", [Spec("sglang", "qwen3", 2, "float32")], ids=str)
def test_memory_that_sglang_releases(started, run_of, spec):
    """On a CPU nothing is released, but the calls are the same: no rank is changed in between."""
    from driftless.engines.drive import EngineError

    engine, run = started.get(spec), run_of(spec.kind)
    engine.to_base(run.model.checkpoint(0))
    assert engine.follow(run.config) == 0
    run.publish()
    engine.update()
    engine.call("/release_memory_occupation", {"tags": ["weights"]})
    run.publish()
    with pytest.raises(EngineError, match="the engine sleeps at level 1: wake it up first"):
        engine.update()
    engine.call("/resume_memory_occupation", {"tags": ["weights"]})
    assert engine.update()["version"] == 2
    assert_at(engine, run.model, 2)
