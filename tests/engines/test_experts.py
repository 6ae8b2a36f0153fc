# SPDX-License-Identifier: Apache-2.0
"""Real vLLM and SGLang with two ranks that each hold half of the experts (EP2) of a Qwen3-MoE, and
half of all other weights. The next version finds and names one flipped bit, in any parameter of
either rank, at a place that no delta changes; an anchor repairs it."""

import pytest
from engines import Spec
from follows import assert_at, assert_weights
from test_live_digest import flip, verify

SPECS = [
    Spec("vllm_server", "qwen3_moe", 2, experts=True),
    Spec("sglang", "qwen3_moe", 2, "float32", experts=True),
]
# Published alternately: every version changes the same elements.
FIRST, SECOND = 1, 2


@pytest.fixture
def engine_and_run(started, run_of, spec):
    engine, run = started.get(spec), run_of(spec.kind, "anchors.every=1")
    engine.to_base(run.model.checkpoint(0))
    assert engine.follow(run.config) == 0
    run.publish(FIRST)
    engine.update()
    return engine, run


def untouched(engine, run):
    """{parameter: an unchanged place}, per rank."""
    paths = [run.model.checkpoint(version) for version in (FIRST, SECOND)]
    if hasattr(engine, "probe"):
        return engine.probe("untouched", paths=paths)
    return engine.rpc("probe_untouched", paths=paths)


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_every_rank_holds_other_experts_and_proves_them(engine_and_run, spec):
    engine, run = engine_and_run
    code, output = verify(engine)
    assert code == 0 and output["verdict"] == "proven" and output["sum"] == output["digest"], output
    # Each rank has half of the experts' tensors.
    layers, experts, projections = 2, 4, 3
    whole = output["proven"] - layers * experts * projections
    held = whole + layers * experts * projections // 2
    assert [rank["tensors"] for rank in output["ranks"]] == [held, held], output
    assert_at(engine, run.model, FIRST)


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_one_bit_in_any_parameter_is_found_and_named(engine_and_run, spec):
    from driftless.engines.drive import EngineError

    engine, run = engine_and_run
    held = FIRST
    for rank, places in enumerate(untouched(engine, run)):
        assert any("experts" in name for name in places) and len(places) > 15, places
        for parameter, place in places.items():
            flip(engine, rank, parameter, place)
            held = FIRST + SECOND - held
            run.publish(held)
            with pytest.raises(EngineError) as found:
                engine.update()
            assert f"rank {rank}: parameter '{parameter}'" in str(found.value), parameter
            assert engine.update()["version"] == run.version, parameter
        assert_weights(engine, run.model, held)
        assert verify(engine)[0] == 0


# Moves experts between ranks, and within a rank.
ROWS = [[2, 1, 0, 3], [3, 2, 0, 1]]


@pytest.mark.parametrize("spec", SPECS[:1], ids=str)
def test_experts_in_other_slots_are_followed(started, run_of, spec):
    """vLLM refuses EPLB on a CPU ("only supported on CUDA devices or ROCm devices or XPU devices"),
    so the test moves the experts and writes the table; the loader is vLLM's own."""
    engine, run = started.get(spec), run_of(spec.kind)
    engine.to_base(run.model.checkpoint(0))
    assert engine.follow(run.config) == 0
    run.publish()
    engine.update()
    try:
        engine.rpc("probe_rearrange", path=run.model.checkpoint(1), rows=ROWS)
        for version in (2, 3):
            run.publish()
            done = engine.update()
            assert done["version"] == version
            moved = [any("rearranged" in text for text in reply["moved"]) for reply in done["replies"]]
            assert moved == [version == 2] * 2, done["replies"]
            path = run.model.checkpoint(version)
            assert engine.rpc("probe_rearranged", path=path, rows=ROWS) == [[], []]
            assert verify(engine)[0] == 0
    finally:
        engine.rpc("probe_rearrange", path=None, rows=None)
