# SPDX-License-Identifier: Apache-2.0
"""Real vLLM in FP8 blocks follows a trainer in bfloat16: in place where it keeps what it loads, by its
own reload of the modules where it does not. Whatever it does, every parameter of every rank is what
a fresh load of a checkpoint has that another converter made; and only what was compared is proven."""

import pytest
from engines import Spec
from follows import assert_at, assert_weights
from hosts import HostError
from test_live_digest import flip, mended, verify

VERSIONS = 10
DENSE = Spec("vllm_server", "qwen3_blocks.linear", 2, fp8="plain")
EXPERTS = Spec("vllm", "qwen3_moe_blocks.linear", 1, fp8="plain")
SWAPPED = Spec("vllm", "qwen3_moe_blocks.linear", 1, fp8="w31")
CLOSED = Spec("vllm", "qwen3_blocks.ue8m0", 1, fp8="e8m0")
REQUANTIZED = Spec("vllm", "qwen3_blocks.linear", 1, fp8="e8m0")
PLAIN = Spec("vllm", "qwen3_blocks.linear", 1, fp8="plain")
IN_PLACE = {"direct", "plan"}  # a tensor that is alone in its parameter, and others


def ways_of(engine):
    """What all ranks say: {tensor: (way, reason)}"""
    first, *others = engine.rpc("probe_ways")
    assert all({n: w for n, (w, _) in o.items()} == {n: w for n, (w, _) in first.items()}
               for o in others)  # fmt: skip
    return first


def kinds(ways):
    return {way for way, _ in ways.values()}


def unproven(engine):
    """Of one rank, after a sweep."""
    (reply,) = engine.rpc("driftless_shares", sweep=True)
    assert reply["ok"], reply
    return {name for name, _ in reply["unproven"]}


def follow(started, run_of, spec, *overrides):
    """The engine at the base of a run of this test."""
    engine, run = started.get(spec), run_of(spec.kind, *overrides)
    if getattr(engine, "used", False):
        engine.to_base(run.model.checkpoint(0))
    engine.used = True
    assert engine.follow(run.config) == 0
    return engine, run


def take(engine, run):
    version = run.publish()
    assert engine.update()["version"] == version
    assert_at(engine, run.model, version)


@pytest.mark.parametrize("spec", [DENSE], ids=str)
def test_ten_versions_in_place(started, run_of, spec):
    """Two ranks, fused codes and scales, tied embeddings, blocks that end before 128; the trainer
    begins again with every version."""
    engine, run = follow(started, run_of, spec, "anchors.every=1")
    assert kinds(ways_of(engine)) <= IN_PLACE
    places = engine.rpc("probe_addresses")
    for _ in range(VERSIONS):
        take(engine, run)
    assert engine.update(timeout_s=0) is None
    assert engine.rpc("probe_addresses") == places
    code, said = verify(engine)
    assert code == 0 and said["verdict"] == "proven", said


@pytest.mark.parametrize("parameter", ["weight", "weight_scale_inv"])
@pytest.mark.parametrize("spec", [DENSE], ids=str)
def test_a_flipped_bit_of_codes_or_scales(started, run_of, spec, parameter):
    engine, run = follow(started, run_of, spec, "anchors.every=1")
    take(engine, run)
    name = f"model.layers.1.self_attn.qkv_proj.{parameter}"
    flip(engine, 1, name, 1)
    code, said = verify(engine)
    assert code == 1 and said["verdict"] == "differs" and name in said["why"], said
    mended(engine, run)


@pytest.mark.parametrize("spec", [EXPERTS, SWAPPED], ids=str)
def test_experts(started, run_of, spec):
    """As Triton keeps them, and with gate and up swapped, as FlashInfer does."""
    engine, run = follow(started, run_of, spec)
    ways = ways_of(engine)
    assert kinds(ways) <= IN_PLACE
    gate = "model.layers.0.mlp.experts.0.gate_proj.weight"
    for name in (gate, f"{gate}_scale_inv"):
        assert ("swapped" in ways[name][1]) == (spec is SWAPPED), ways[name]
    places = engine.rpc("probe_addresses")
    for _ in range(3):
        take(engine, run)
    assert engine.rpc("probe_addresses") == places
    assert unproven(engine) == set()


@pytest.mark.parametrize("spec", [EXPERTS], ids=str)
def test_experts_that_vllm_has_loaded_again(started, run_of, spec):
    """vLLM's own reload leaves the kernel scales of its own: what is written into the layer's would
    change nothing. The experts are loaded again with each version."""
    engine, run = started.get(spec), run_of(spec.kind)
    engine.to_base(run.model.checkpoint(0))
    assert engine.follow(run.config) == 0
    ways = ways_of(engine)
    assert {way for name, (way, _) in ways.items() if ".experts." in name} == {"reload"}
    assert {way for name, (way, _) in ways.items() if ".experts." not in name} <= IN_PLACE
    for _ in range(3):
        take(engine, run)
    assert unproven(engine) == {name for name in ways if ".experts." in name}


@pytest.mark.parametrize("spec", [CLOSED], ids=str)
def test_the_closed_rule_stays_in_place(started, run_of, spec):
    """An engine that requantizes to powers of two leaves what the rule ue8m0 made. Versions that do
    not say that they are made by it are refused, though these are."""
    engine, run = follow(started, run_of, spec, "quantize.rule=ue8m0")
    assert kinds(ways_of(engine)) <= IN_PLACE
    for _ in range(3):
        take(engine, run)
    assert unproven(engine) == set()
    other = run_of(spec.kind, replay=False)
    engine.to_base(run.model.checkpoint(0))
    engine.follow(other.config)
    other.publish()
    with pytest.raises(HostError, match="a rule that it does not name.*quantize.rule: ue8m0"):
        engine.update()
    assert_weights(engine, run.model, 0)
    (reply,) = engine.replies()
    assert reply["version"] == 0


@pytest.mark.parametrize("spec", [REQUANTIZED], ids=str)
def test_requantized_modules_are_loaded_again(started, run_of, spec):
    """By name, with the setting that would keep them; unproven, and equal to a fresh load."""
    engine, run = follow(started, run_of, spec)
    ways = ways_of(engine)
    reloaded = {name for name, (way, _) in ways.items() if way == "reload"}
    assert reloaded == {name for name in ways if "_proj.weight" in name}
    assert {way for name, (way, _) in ways.items() if name not in reloaded} <= IN_PLACE
    for name in reloaded:
        assert "VLLM_USE_DEEP_GEMM_E8M0=0" in ways[name][1], ways[name]
    for _ in range(3):  # its tokens are those of other codes
        version = run.publish()
        assert engine.update()["version"] == version
        assert_weights(engine, run.model, version, tokens=False)
    assert unproven(engine) == reloaded


@pytest.mark.parametrize("spec", [PLAIN], ids=str)
def test_what_does_not_belong_is_refused(started, run_of, spec):
    """A run in bfloat16, and one whose base was made by another rule; and a way back."""
    engine, run = follow(started, run_of, spec)
    take(engine, run)
    take(engine, run)
    (reply,) = engine.rpc("driftless_rollback", version=1)
    assert reply["ok"] and reply["version"] == 1, reply
    assert_weights(engine, run.model, 1)
    assert engine.update()["version"] == 2
    assert_at(engine, run.model, 2)
    for other in (run_of("qwen3"), run_of("qwen3_blocks.ue8m0", "quantize.rule=ue8m0")):
        engine.to_base(run.model.checkpoint(0))
        with pytest.raises(HostError, match="wrong_layout|wrong_run|wrong_base"):
            engine.follow(other.config)
        assert_weights(engine, run.model, 0)
