# SPDX-License-Identifier: Apache-2.0
"""Real vLLM in FP8 blocks follows a trainer in bfloat16: in place if vLLM keeps the loaded tensors,
otherwise by vLLM's own reload of modules. In all cases every parameter of every rank equals a fresh
load of a checkpoint that another converter made; only compared values count as proven."""

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
IN_PLACE = {"direct", "plan"}  # direct: the tensor is alone in its parameter


def ways_of(engine):
    """The ways that all ranks report: {tensor: (way, reason)}"""
    first, *others = engine.rpc("probe_ways")
    assert all({n: w for n, (w, _) in o.items()} == {n: w for n, (w, _) in first.items()}
               for o in others)  # fmt: skip
    return first


def kinds(ways):
    return {way for way, _ in ways.values()}


def unproven(engine):
    """The unproven tensors of one rank, after a sweep."""
    (reply,) = engine.rpc("driftless_shares", sweep=True)
    assert reply["ok"], reply
    return {name for name, _ in reply["unproven"]}


def follow(started, run_of, spec, *overrides):
    """The engine at the base of this test's run."""
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
    """Two ranks, fused codes and scales, tied embeddings, blocks smaller than 128; the trainer is
    restarted for every version."""
    engine, run = follow(started, run_of, spec, "anchors.every=1")
    assert kinds(ways_of(engine)) <= IN_PLACE
    places = engine.rpc("probe_addresses")
    for _ in range(VERSIONS):
        take(engine, run)
    assert engine.update(timeout_s=0) is None
    assert engine.rpc("probe_addresses") == places
    code, output = verify(engine)
    assert code == 0 and output["verdict"] == "proven", output


@pytest.mark.parametrize("parameter", ["weight", "weight_scale_inv"])
@pytest.mark.parametrize("spec", [DENSE], ids=str)
def test_a_flipped_bit_of_codes_or_scales(started, run_of, spec, parameter):
    engine, run = follow(started, run_of, spec, "anchors.every=1")
    take(engine, run)
    name = f"model.layers.1.self_attn.qkv_proj.{parameter}"
    flip(engine, 1, name, 1)
    code, output = verify(engine)
    assert code == 1 and output["verdict"] == "differs" and name in output["why"], output
    mended(engine, run)


@pytest.mark.parametrize("spec", [EXPERTS, SWAPPED], ids=str)
def test_experts(started, run_of, spec):
    """Experts as Triton keeps them, and with gate and up swapped, as FlashInfer does."""
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
    """After vLLM's own reload the kernel has other scales than the layer, so writing into the layer
    would change nothing. The experts are loaded again with each version."""
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
    """An engine that requantizes to powers of two keeps weights of the rule ue8m0. Versions that do
    not name that rule are refused, even if they follow it."""
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
    """They are named, with the setting that would keep them; unproven, but equal to a fresh
    load."""
    engine, run = follow(started, run_of, spec)
    ways = ways_of(engine)
    reloaded = {name for name, (way, _) in ways.items() if way == "reload"}
    assert reloaded == {name for name in ways if "_proj.weight" in name}
    assert {way for name, (way, _) in ways.items() if name not in reloaded} <= IN_PLACE
    for name in reloaded:
        assert "VLLM_USE_DEEP_GEMM_E8M0=0" in ways[name][1], ways[name]
    for _ in range(3):  # requantized codes give other tokens
        version = run.publish()
        assert engine.update()["version"] == version
        assert_weights(engine, run.model, version, tokens=False)
    assert unproven(engine) == reloaded


@pytest.mark.parametrize("spec", [PLAIN], ids=str)
def test_other_dtypes_and_rules_are_refused(started, run_of, spec):
    """A run in bfloat16, and one whose base has another rule, are refused; a right one still
    works."""
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
