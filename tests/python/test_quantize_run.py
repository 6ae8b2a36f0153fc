# SPDX-License-Identifier: Apache-2.0
"""A trainer that replays bfloat16 checkpoints to rollouts with an FP8 base: each version equals the
output of an independent converter for the step, bit for bit."""

import json
import shutil

import pytest
from quantize_reference import quantize_checkpoint

from jobs import Files, Job, events, finish
from support import (
    Tensor,
    assert_refusal,
    changed,
    ok,
    ok_json,
    random_tensor,
    read_checkpoint,
    run,
    with_bits,
    write_checkpoint,
)

MATRICES = {
    "model.layers.0.mlp.down_proj.weight": (260, 130),
    "model.layers.0.self_attn.q_proj.weight": (40, 256),
    "model.layers.1.self_attn.q_proj.weight": (128, 128),
    "model.layers.1.self_attn.empty.weight": (0, 5),
}
KEPT = {"model.embed_tokens.weight": (64, 32), "model.norm.weight": (33,)}
STEPS = 4
CODED = {
    "flush": ("indices", "deltas", "deltas_zstd"),
    "hf_delta": ("xor", "overwrite"),
    "frames": ("indices", "deltas", "deltas_zstd", "compact"),
}


def nudged(rng, tensor, fraction):
    """Changes weights as training does: by units in the last place, so that most scales stay."""
    words = tensor.words().copy()
    words[rng.random(len(words)) < fraction] ^= 3
    return Tensor(tensor.dtype, tensor.shape, words.tobytes())


# Placed after a weight that is larger than all others, so that its block's scale changes.
ODD = {2: (0x3F80, 0x7FC0, 0x7F81, 0x8000, 0x0000, 0x0001), 3: (0xFF80,)}


def make_run(work, rng, steps=STEPS):
    """Writes step_000000/ ... in bfloat16; in the last step all weights change."""
    weights = {n: random_tensor(rng, "BF16", s) for n, s in (MATRICES | KEPT).items()}
    weights["bias"] = random_tensor(rng, "F32", (5,))
    history = []
    for step in range(steps + 1):
        name = "model.layers.0.self_attn.q_proj.weight"
        weights[name] = with_bits(weights[name], *ODD.get(step, ()))
        history.append(weights)
        write_checkpoint(work / f"run/step_{step:06d}", weights, 1 + step % 2)
        change = changed if step + 1 == steps else nudged
        weights = {n: change(rng, t, 1 if change is changed else 0.05) for n, t in weights.items()}
    return history


def make_base(work, rule="linear", name="fp8"):
    ok("quantize", work / "run/step_000000", work / name, "--rule", rule)
    return work / name


def publish(work, base, *arguments, code=0, settings=(), layout="flush"):
    job = Files(work, "hf_delta" if layout == "hf_delta" else "flush")
    more = ["--set", f"road.layout={layout}", "--set", "keep_versions=0"]
    for setting in settings:
        more += ["--set", setting]
    line = ["--replay", work / "run", "--base", base, *more, *arguments]
    result = finish(job.start_trainer(*line))
    assert result.returncode == code, result.stderr + result.stdout
    return job, result


def check_versions(work, job, base, history, rule, first=1, last=STEPS):
    target = work / "target"
    if not target.exists():
        shutil.copytree(base, target)
    for version in range(first, last + 1):
        apply = ["apply", job.dir, "--to", target, "--to-version", version, "--verify", "full"]
        applied = run(*apply)  # notes on a full version in frames name its other files
        assert applied.returncode == 0, applied.stderr
        assert read_checkpoint(target) == quantize_checkpoint(rule, history[version], MATRICES)


@pytest.mark.parametrize(
    ("layout", "encoding"), [(layout, each) for layout in CODED for each in CODED[layout]]
)
def test_every_encoding_carries_codes_and_scales(work, rng, layout, encoding):
    history = make_run(work, rng)
    base = make_base(work)
    job, _ = publish(work, base, settings=[f"encoding={encoding}"], layout=layout)
    check_versions(work, job, base, history, "linear")
    texts = [(job.version_dir(v) / "manifest.json").read_text() for v in range(1, STEPS + 1)]
    manifests = [json.loads(text) for text in texts]
    assert {manifest["quantize_rule"] for manifest in manifests} == {"linear"}
    # A version in which nearly all weights change is sent as a full one.
    assert [manifest["encoding"] for manifest in manifests] == [encoding] * (STEPS - 1) + ["full"]
    # A part for each type (codes, scales, weights that stay in bfloat16), not for each scale.
    if layout != "hf_delta":
        parts = [len(list(job.version_dir(v).glob("rank*"))) for v in range(1, STEPS)]
        assert max(parts) <= 3, parts


@pytest.mark.parametrize("rule", ["linear_div", "ue8m0"])
def test_rules(work, rng, rule):
    history = make_run(work, rng)
    base = make_base(work, rule)
    job, _ = publish(work, base, settings=[f"quantize.rule={rule}", "quantize.scheme=fp8_block"])
    check_versions(work, job, base, history, rule)
    assert json.loads((job.dir / "run.json").read_text())["quantize_rule"] == rule
    for path in (job.dir / "run.json", job.version_dir(1)):
        assert ok_json("inspect", path)["quantize_rule"] == rule


def test_the_base_may_come_from_another_converter(work, rng):
    """Version 1 is a diff against the base's own bytes: here codes and scales of another rule, and
    one matrix that is not quantized."""
    history = make_run(work, rng)
    base = make_base(work, "linear_div")
    tensors = read_checkpoint(base)
    kept = "model.layers.1.self_attn.q_proj.weight"
    tensors[kept] = history[0][kept]
    del tensors[kept + "_scale_inv"]
    odd = "model.layers.0.self_attn.q_proj.weight"
    tensors[odd] = changed(rng, tensors[odd], 0.5)
    shutil.move(base / "config.json", work / "config.json")
    shutil.rmtree(base)
    write_checkpoint(base, tensors, 2)
    shutil.move(work / "config.json", base / "config.json")
    job, _ = publish(work, base)
    target = work / "target"
    shutil.copytree(base, target)
    for version in range(1, STEPS + 1):
        ok("apply", job.dir, "--to", target, "--to-version", version, "--verify", "full")
        expected = quantize_checkpoint("linear", history[version], set(MATRICES) - {kept})
        assert read_checkpoint(target) == expected


def test_restarts_in_the_middle(work, rng):
    history = make_run(work, rng)
    base = make_base(work)
    job, _ = publish(work, base, "--steps", 2)
    check_versions(work, job, base, history, "linear", 1, 2)
    _, refused = publish(work, base, settings=["quantize.rule=ue8m0"], code=7)
    assert "quantize.rule" in refused.stderr
    job, _ = publish(work, base, "--steps", 3)
    job, _ = publish(work, base)
    check_versions(work, job, base, history, "linear", 3, STEPS)
    # A late rollout starts from the base, and is saved with the base's configuration.
    result = finish(job.start_rollout("--base", base, "--save", work / "save"))
    assert result.returncode == 0, result.stderr
    saved = work / "save/rollout_00"
    assert read_checkpoint(saved) == quantize_checkpoint("linear", history[STEPS], MATRICES)
    assert (saved / "config.json").read_bytes() == (base / "config.json").read_bytes()


def test_a_run_by_another_rule_is_not_continued_before_its_first_version(work, rng):
    make_run(work, rng, 1)
    base = make_base(work)
    publish(work, base, "--steps", 0)
    _, refused = publish(work, base, settings=["quantize.rule=linear_div"], code=7)
    assert "is quantized by linear" in refused.stderr
    _, refused = publish(work, base, settings=["quantize.scheme=none"], code=7)
    assert "is not quantized" in refused.stderr
    shutil.rmtree(work / "road")
    _, refused = publish(work, base, settings=["quantize.scheme=none"], code=4)
    assert "wrong_layout" in refused.stderr


def test_ranks_share_codes_and_scales(work, rng):
    """Three trainer ranks and two rollouts, under mpirun."""
    history = make_run(work, rng)
    base = make_base(work)
    job = Job(work, "mpi_rma")
    replay = ["--replay", work / "run", "--base", base]
    result = job.run(trainer=replay, rollout=["--base", base], trainers=3)
    assert result.returncode == 0, result.stderr
    assert [event["version"] for event in events(result)["version"]] == list(range(1, STEPS + 1))
    for rollout in ("rollout_00", "rollout_01"):
        saved = read_checkpoint(job.save / rollout)
        assert saved == quantize_checkpoint("linear", history[STEPS], MATRICES)


def test_fp8_checkpoints_are_replayed_unchanged(work, rng):
    """Nothing is quantized, whatever the base's scheme is."""
    make_run(work, rng, 2)
    (work / "other").mkdir()
    for step in (0, 1, 2):
        ok("quantize", work / f"run/step_{step:06d}", work / f"other/step_{step:06d}")
        config = work / f"other/step_{step:06d}/config.json"
        text = json.loads(config.read_text())
        text["quantization_config"] = {"quant_method": "awq"}
        config.write_text(json.dumps(text))
    expected = read_checkpoint(work / "other/step_000002")
    shutil.rmtree(work / "run")
    shutil.move(work / "other", work / "run")
    job, _ = publish(work, work / "run/step_000000")
    target = work / "target"
    shutil.copytree(work / "run/step_000000", target)
    ok("apply", job.dir, "--to", target)
    assert read_checkpoint(target) == expected
    assert "quantize_rule" not in (job.dir / "run.json").read_text()
    _, refused = publish(
        work, work / "run/step_000000", settings=["quantize.scheme=fp8_block"], code=2
    )
    assert "quantize.scheme: auto" in refused.stderr


FP8 = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic"}
OTHERS = {
    "FP8 with one scale for a tensor": FP8,
    "FP8 with blocks of [64,64]": FP8 | {"weight_block_size": [64, 64]},
    "FP8 with static activations": FP8
    | {"weight_block_size": [128, 128], "activation_scheme": "static"},
    "FP8 as e5m2": FP8 | {"weight_block_size": [128, 128], "fmt": "e5m2"},
    "MXFP8": FP8 | {"weight_block_size": [1, 32], "scale_fmt": "ue8m0"},
    "NVFP4": {"quant_method": "modelopt", "quant_algo": "NVFP4"},
    "INT4 (awq)": {"quant_method": "awq", "bits": 4},
    "INT4 (compressed-tensors)": {
        "quant_method": "compressed-tensors",
        "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int"}}},
    },
    "bitsandbytes": {"quant_method": "bitsandbytes"},
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_schemes_are_refused_by_name(work, rng, name):
    make_run(work, rng, 1)
    base = make_base(work)
    config = json.loads((base / "config.json").read_text())
    config["quantization_config"] = OTHERS[name]
    (base / "config.json").write_text(json.dumps(config))
    _, refused = publish(work, base, code=8)
    assert f"is quantized as '{name}'" in refused.stderr
    assert "driftless quantize" in refused.stderr
    assert not (work / "road/run.json").exists()


@pytest.mark.parametrize("fmt", ["float8_e4m3fn", "E4M3", "e4m3fn"])
def test_other_names_of_e4m3_are_the_same_format(work, rng, fmt):
    history = make_run(work, rng, 1)
    base = make_base(work)
    config = json.loads((base / "config.json").read_text())
    config["quantization_config"]["fmt"] = fmt
    (base / "config.json").write_text(json.dumps(config))
    job, _ = publish(work, base)
    check_versions(work, job, base, history, "linear", last=1)


def test_ue8m0_in_capitals_is_ue8m0(work, rng):
    history = make_run(work, rng, 1)
    base = make_base(work, "ue8m0")
    text = (base / "config.json").read_text()
    assert '"ue8m0"' in text
    (base / "config.json").write_text(text.replace('"ue8m0"', '"UE8M0"'))
    _, refused = publish(work, base, code=2)
    assert "scale_fmt: UE8M0" in refused.stderr and "quantize.rule: ue8m0" in refused.stderr
    job, _ = publish(work, base, settings=["quantize.rule=ue8m0"])
    check_versions(work, job, base, history, "ue8m0", last=1)


def test_a_base_that_an_apply_left_half_written_is_refused(work, rng):
    make_run(work, rng, 1)
    base = make_base(work)
    (base / ".weight_sync").mkdir()
    (base / ".weight_sync/journal").write_bytes(b"")
    _, refused = publish(work, base, code=6)
    assert "an apply was interrupted here" in refused.stderr
    assert not (work / "road/run.json").exists()


def test_bases_that_do_not_fit_are_refused(work, rng):
    make_run(work, rng, 1)
    base = make_base(work, "ue8m0")
    _, refused = publish(work, base, code=2)
    assert "scale_fmt: ue8m0" in refused.stderr and "quantize.rule: ue8m0" in refused.stderr
    ue8m0 = ["quantize.rule=ue8m0"]
    tensors = read_checkpoint(base)
    config = (base / "config.json").read_text()

    def with_tensors(changes, text=config):
        shutil.rmtree(base)
        made = {name: tensor for name, tensor in (tensors | changes).items() if tensor is not None}
        write_checkpoint(base, made)
        (base / "config.json").write_text(text)

    name = "model.layers.1.self_attn.q_proj.weight"
    scales = name + "_scale_inv"
    cases = [
        ({scales: random_tensor(rng, "BF16", (1, 1))}, 8, scales),
        ({scales: random_tensor(rng, "F32", (2, 1))}, 8, scales),
        ({scales: None}, 4, "without scales"),
        ({name: None}, 4, "has no tensor"),
        ({name: random_tensor(rng, "F8_E5M2", (128, 128))}, 8, "F8_E5M2"),
        ({"more.weight": random_tensor(rng, "BF16", (3,))}, 4, "more.weight"),
        ({"model.norm.weight": None}, 4, "model.norm.weight"),
        ({"model.norm.weight": random_tensor(rng, "BF16", (34,))}, 4, "model.norm.weight"),
    ]
    for changes, code, word in cases:
        with_tensors(changes)
        _, refused = publish(work, base, settings=ue8m0, code=code)
        assert word in refused.stderr, refused.stderr
        shutil.rmtree(work / "road", ignore_errors=True)
    with_tensors({}, "{}")
    _, refused = publish(work, base, settings=ue8m0, code=2)
    assert "no quantization_config" in refused.stderr
    with_tensors({}, "{")
    publish(work, base, settings=ue8m0, code=4)
    replay = ["trainer", "--config", Files(work).config, "--base", base]
    assert_refusal(run(*replay), 2, "--replay")
