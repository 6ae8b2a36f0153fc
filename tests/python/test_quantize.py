# SPDX-License-Identifier: Apache-2.0
"""driftless quantize: its FP8 base equals that of an independent converter, bit for bit."""

import json

import numpy as np
import pytest
import quantize_reference
from quantize_reference import quantize_checkpoint
from support import (
    Tensor,
    assert_refusal,
    ok,
    ok_json,
    random_tensor,
    read_checkpoint,
    run,
    with_bits,
    write_checkpoint,
)

RULES = ("linear", "linear_div", "ue8m0")
QUANTIZED = {
    "model.layers.0.mlp.down_proj.weight": (260, 130),
    "model.layers.0.mlp.experts.3.gate_proj.weight": (64, 200),
    "model.layers.0.self_attn.q_proj.weight": (128, 128),
    "model.layers.0.self_attn.empty.weight": (0, 5),
}
KEPT = {
    "lm_head.weight": (40, 128),
    "model.embed_tokens.weight": (40, 128),
    "model.layers.0.input_layernorm.weight": (128,),
    "model.layers.0.mlp.gate.weight": (8, 128),
    "model.layers.0.mlp.shared_expert_gate.weight": (1, 128),
    "model.layers.0.self_attn.q_proj.bias": (128,),
    "model.layers.0.linear_attn.conv1d.weight": (16, 1, 4),
}
CONFIG = {"model_type": "qwen3", "rms_norm_eps": 1e-06, "nested": {"b": 1, "a": [2]}}


@pytest.fixture
def base(tmp_path):
    """A checkpoint in bfloat16, in two files; and its tensors."""
    rng = np.random.default_rng(5)
    tensors = {n: random_tensor(rng, "BF16", s) for n, s in (QUANTIZED | KEPT).items()}
    odd = "model.layers.0.mlp.down_proj.weight"
    tensors[odd] = with_bits(tensors[odd], 0x7FC0, 0xFFFF, 0x8000, 0x0001, 0x7F7F, 0x0000)
    tensors["model.layers.0.scale.weight"] = random_tensor(rng, "F32", (4, 4))
    write_checkpoint(tmp_path / "bf16", tensors, 2)
    (tmp_path / "bf16/config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    (tmp_path / "bf16/tokenizer.json").write_bytes(b"{}\n")
    return tmp_path / "bf16", tensors


def files(directory):
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.mark.parametrize("rule", RULES)
def test_equals_another_converter(base, tmp_path, rule):
    source, tensors = base
    before = files(source)
    out = tmp_path / "fp8"
    line = ["quantize", source, out, "--rule", rule, "--shard-bytes", 70_000, "--threads", 3]
    report = ok_json(*line)
    expected = quantize_checkpoint(rule, tensors, QUANTIZED)
    assert read_checkpoint(out) == expected
    assert report["quantized_tensors"] == len(QUANTIZED)
    assert report["kept_tensors"] == len(KEPT) + 1 and report["rule"] == rule
    assert report["bytes"] == sum(len(t.data) for t in expected.values())
    assert files(source) == before
    assert (out / "tokenizer.json").read_bytes() == b"{}\n"
    config = json.loads((out / "config.json").read_text(encoding="utf-8"))
    quantization = config.pop("quantization_config")
    assert config == CONFIG and list(config) == list(CONFIG)
    kept = quantization.pop("modules_to_not_convert")
    assert set(kept) == {
        n.removesuffix(".weight")
        for n in [*KEPT, "model.layers.0.scale.weight"]
        if n.endswith(".weight")
    }
    assert quantization.pop("scale_fmt", None) == ("ue8m0" if rule == "ue8m0" else None)
    assert quantization == {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "activation_scheme": "dynamic",
        "weight_block_size": [128, 128],
    }
    assert {p.name for p in tmp_path.iterdir()} == {"bf16", "fp8"}, "no hidden file remains"


def test_a_checkpoint_in_one_file_without_configuration(tmp_path):
    rng = np.random.default_rng(1)
    tensors = {
        "a.weight": random_tensor(rng, "BF16", (129, 5)),
        "norm": random_tensor(rng, "F32", (3,)),
    }
    write_checkpoint(tmp_path / "bf16", tensors, 1)
    (tmp_path / "bf16/config.json").unlink()
    text = ok("quantize", tmp_path / "bf16", tmp_path / "fp8")
    assert "1 tensors quantized by rule linear, 1 kept" in text
    assert read_checkpoint(tmp_path / "fp8") == quantize_checkpoint("linear", tensors, ["a.weight"])
    assert "quantization_config" in json.loads((tmp_path / "fp8/config.json").read_text())


def test_patterns_choose(base, tmp_path):
    source, tensors = base
    ok("quantize", source, tmp_path / "some", "--only", "*q_proj.weight", "--only", "lm_head.*")
    names = ["model.layers.0.self_attn.q_proj.weight", "lm_head.weight"]
    assert read_checkpoint(tmp_path / "some") == quantize_checkpoint("linear", tensors, names)
    ok("quantize", source, tmp_path / "less", "--skip", "*.mlp.*")
    names = [name for name in QUANTIZED if ".mlp." not in name]
    assert read_checkpoint(tmp_path / "less") == quantize_checkpoint("linear", tensors, names)
    refused = run("quantize", source, tmp_path / "no", "--only", "*q_proj*")
    assert_refusal(refused, 2, "q_proj.bias", "BF16")
    refused = run("quantize", source, tmp_path / "no", "--only", "nothing")
    assert_refusal(refused, 2, "no tensor")
    assert not (tmp_path / "no").exists()


def test_refusals_leave_nothing(base, tmp_path):
    source, _ = base
    ok("quantize", source, tmp_path / "fp8")
    held = files(tmp_path / "fp8")
    assert_refusal(run("quantize", source, tmp_path / "fp8"), 7, "is there already")
    assert_refusal(run("quantize", source, f"{tmp_path}/fp8/"), 7, "is there already")
    assert_refusal(run("quantize", tmp_path / "fp8", tmp_path / "b"), 8, "quantized already")
    assert_refusal(run("quantize", tmp_path / "none", tmp_path / "b"), 3, "none")
    assert_refusal(run("quantize", source, tmp_path / "no/where"), 3, "no exists")
    shard = next(p for p in source.iterdir() if p.suffix == ".safetensors")
    assert_refusal(run("quantize", shard, tmp_path / "b"), 2, "directory")
    config = source / "config.json"
    config.write_text(json.dumps(CONFIG | {"quantization_config": {"quant_method": "awq"}}))
    assert_refusal(run("quantize", source, tmp_path / "b"), 8, "quantization_config")
    config.write_text("[1]")
    assert_refusal(run("quantize", source, tmp_path / "b"), 4, "config.json")
    shard.write_bytes(shard.read_bytes()[:-9])
    assert_refusal(run("quantize", source, tmp_path / "b"), 4, shard.name)
    assert files(tmp_path / "fp8") == held
    assert {p.name for p in tmp_path.iterdir()} == {"bf16", "fp8"}


def test_memory_is_bounded(tmp_path):
    """160 MB of weights: whole copies in memory would show. 64 MiB are held at a time."""
    words = np.random.default_rng(2).integers(0x3A00, 0x3F00, 1 << 20, dtype="<u2").tobytes()
    weight = Tensor("BF16", (40 * 128, 128 * 128), words * 80)
    write_checkpoint(tmp_path / "bf16", {"a.weight": weight}, 1)
    line = ["quantize", tmp_path / "bf16", tmp_path / "fp8", "--threads", 1]
    ok(*line, preexec_fn=limit_memory)
    made = read_checkpoint(tmp_path / "fp8")
    assert made["a.weight"].data[: 128 * 16384] == quantized_rows(weight, 128)


def limit_memory():
    import resource

    resource.setrlimit(resource.RLIMIT_DATA, (150 << 20, 150 << 20))


def quantized_rows(weight, rows):
    codes, _ = quantize_reference.quantize(
        "linear", weight.words()[: rows * weight.shape[1]], (rows, weight.shape[1])
    )
    return codes.tobytes()


@pytest.mark.parametrize(
    ("layout", "encoding"), [("flush", "deltas"), ("frames", "deltas_zstd"), ("frames", "compact")]
)
def test_a_diff_has_a_file_for_each_type(tmp_path, layout, encoding):
    """However codes, scales and norms alternate in the checkpoint."""
    rng = np.random.default_rng(7)
    layers = range(6)
    old = {f"{i}.a.weight": random_tensor(rng, "BF16", (130, 140)) for i in layers}
    old |= {f"{i}.norm.weight": random_tensor(rng, "BF16", (50,)) for i in layers}
    new = {n: with_bits(tensor, 0x3F80 + tensor.words()[0] % 7) for n, tensor in old.items()}
    for name, tensors in (("old", old), ("new", new)):
        write_checkpoint(tmp_path / name, tensors)
        ok("quantize", tmp_path / name, tmp_path / f"{name}8", "--only", "*.a.weight")
    line = ["--layout", layout, "--encoding", encoding]
    ok("diff", tmp_path / "old8", tmp_path / "new8", "--out", tmp_path / "road", *line)
    assert len(list(tmp_path.glob("road/*/rank*"))) == 3
    ok("apply", tmp_path / "road", "--to", tmp_path / "old8", "--verify", "full")
    assert read_checkpoint(tmp_path / "old8") == read_checkpoint(tmp_path / "new8")
