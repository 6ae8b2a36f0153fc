# SPDX-License-Identifier: Apache-2.0
"""Bases in INT4 groups, as compressed-tensors stores them: made by driftless quantize, and followed
by replays. All equal the output of an independent converter, bit for bit."""

import json
import shutil

import pytest
from int4_reference import quantize_checkpoint
from test_quantize_trainers import arrays

import binding
from jobs import Files, finish
from support import (
    Tensor,
    assert_refusal,
    ok_json,
    random_tensor,
    read_checkpoint,
    run,
    write_checkpoint,
)

MATRICES = {
    "model.layers.0.mlp.down_proj.weight": (260, 256),
    "model.layers.0.mlp.experts.3.up_proj.weight": (3, 128),
    "model.layers.1.self_attn.q_proj.weight": (64, 384),
}
KEPT = {
    "lm_head.weight": (40, 128),
    "model.layers.0.mlp.gate.weight": (8, 128),
    "model.layers.1.self_attn.odd.weight": (40, 100),  # no whole groups
    "model.norm.weight": (33,),
}
STEPS = 3
driftless = binding.driftless()


@pytest.fixture
def history(work, rng):
    """Steps in bfloat16; in the last one all weights grow, and so do all scales."""
    weights = {n: random_tensor(rng, "BF16", s) for n, s in (MATRICES | KEPT).items()}
    found = []
    for step in range(STEPS + 1):
        found.append(weights)
        write_checkpoint(work / f"run/step_{step:06d}", weights, 1 + step % 2)
        after = {}
        for name, tensor in weights.items():
            words = tensor.words().copy()
            some = rng.random(len(words)) < 0.05
            words[some] ^= 3
            if step + 1 == STEPS:
                words[(words & 0x7F80) != 0] += 0x80
            after[name] = Tensor(tensor.dtype, tensor.shape, words.tobytes())
        weights = after
    return found


def make_base(work, group, *arguments):
    base = work / "int4"
    made = ["--scheme", "int4_group", "--group", group]
    return base, ok_json("quantize", work / "run/step_000000", base, *made, *arguments)


def publish(work, base, *settings, code=0):
    job = Files(work, "flush")
    more = ["--set", "road.layout=frames", "--set", "keep_versions=0"]
    for setting in settings:
        more += ["--set", setting]
    result = finish(job.start_trainer("--replay", work / "run", "--base", base, *more))
    assert result.returncode == code, result.stderr + result.stdout
    return job, result


@pytest.mark.parametrize("group", (32, 128))
def test_equals_another_converter(work, history, group):
    base, report = make_base(work, group)
    assert read_checkpoint(base) == quantize_checkpoint(group, history[0], MATRICES)
    assert (report["rule"], report["quantized_tensors"]) == ("int4_group", len(MATRICES))
    config = json.loads((base / "config.json").read_text())["quantization_config"]
    (only,) = config["config_groups"].values()
    assert (config["quant_method"], config["format"]) == ("compressed-tensors", "pack-quantized")
    assert only["weights"]["num_bits"] == 4 and only["weights"]["group_size"] == group
    kept = {name.removesuffix(".weight") for name in KEPT if name.endswith(".weight")}
    assert set(config["ignore"]) == kept


@pytest.mark.parametrize("encoding", ("deltas", "compact"))
@pytest.mark.parametrize("group", (32, 128))
def test_replays(work, history, group, encoding):
    base, _ = make_base(work, group)
    job, _ = publish(work, base, f"encoding={encoding}", "quantize.scheme=int4_group")
    target = work / "target"
    shutil.copytree(base, target)
    for version in range(1, STEPS + 1):
        apply = ["apply", job.dir, "--to", target, "--to-version", version, "--verify", "full"]
        applied = run(*apply)  # the notes on a whole version in frames name its other files
        assert applied.returncode == 0, applied.stderr
        expected = quantize_checkpoint(group, history[version], MATRICES)
        assert read_checkpoint(target) == expected, version
    assert json.loads((job.dir / "run.json").read_text())["quantize_rule"] == "int4_group"


@pytest.mark.parametrize("group", (32, 128))
def test_captured_changes_are_coded(work, history, group):
    """Without a snapshot of the weights or of their codes."""
    base, _ = make_base(work, group)
    live = binding.Source(driftless, arrays(history[0]))
    config = binding.config(driftless, work / "road", "road.layout=frames")
    job = driftless.Job(config, "trainer", launched=False)
    publisher = driftless.Publisher(job, live, checkpoint=base, snapshot="none")
    target = work / "target"
    shutil.copytree(base, target)
    for step in range(1, STEPS + 1):
        now = binding.Source(driftless, arrays(history[step]))
        publisher.capture(list(enumerate(now.arrays)))
        for array, new in zip(live.arrays, now.arrays, strict=True):
            array[...] = new
        report = publisher.publish(live, wait=step != 2) or publisher.wait()
        assert report.version == step
        assert step == STEPS or report.live.resent_tensors == 0
    publisher.declare_end()
    job.close()
    for step in range(1, STEPS + 1):
        applied = run("apply", work / "road", "--to", target, "--to-version", step)
        assert applied.returncode == 0, applied.stderr
        assert read_checkpoint(target) == quantize_checkpoint(group, history[step], MATRICES), step


def test_what_does_not_fit_is_refused_by_name(work, history):
    base, _ = make_base(work, 32)
    _, refused = publish(work, base, "quantize.rule=ue8m0", code=2)
    assert "leave quantize.rule out" in refused.stderr
    _, refused = publish(work, base, "quantize.scheme=fp8_block", code=2)
    assert "groups in INT4" in refused.stderr and "quantize.scheme: auto" in refused.stderr
    config = json.loads((base / "config.json").read_text())
    for key, value in (("symmetric", False), ("group_size", 64), ("actorder", "group")):
        other = json.loads(json.dumps(config))
        other["quantization_config"]["config_groups"]["group_0"]["weights"][key] = value
        (base / "config.json").write_text(json.dumps(other))
        _, refused = publish(work, base, code=8)
        assert "is quantized as 'INT4 (compressed-tensors)'" in refused.stderr, key
    tensors = read_checkpoint(base)
    name = "model.layers.1.self_attn.q_proj.weight"
    for missing in ("_scale", "_shape"):
        shutil.rmtree(base)
        write_checkpoint(base, {n: t for n, t in tensors.items() if n != name + missing})
        (base / "config.json").write_text(json.dumps(config))
        _, refused = publish(work, base, code=4)
        assert name + "_packed" in refused.stderr and name + missing in refused.stderr
    odd = "model.layers.1.self_attn.odd.weight"
    line = ["quantize", work / "run/step_000000", work / "odd", "--scheme", "int4_group"]
    assert_refusal(run(*line, "--only", odd), 2, odd, "groups of 32")
    assert_refusal(run(*line, "--rule", "ue8m0"), 2, "leave --rule out")
