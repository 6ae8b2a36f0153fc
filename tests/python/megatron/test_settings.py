# SPDX-License-Identifier: Apache-2.0
"""Settings of megatron-core that change a weight's name, shape or meaning are refused before a
model is built, wherever they come from; settings that change only what a rollout must compute are
noted."""

import json
import subprocess

import jobs
import pytest
from megatron_jobs import HERE, Job, environment, shown, venv_python
from test_megatron_lm import ARGUMENTS, EXPERTS

import tiny_config

# case: (family, settings of Megatron, of config.json, words of the refusal)
REFUSED = {
    "gamma - 1": ("qwen3", {"layernorm_zero_centered_gamma": True}, {}, "--apply-layernorm-1p"),
    "LayerNorm": ("qwen3", {"normalization": "LayerNorm"}, {}, "RMSNorm"),
    "no gate": ("llama", {"gated_linear_unit": False}, {}, "--swiglu"),
    "biases": ("llama", {"add_bias_linear": True}, {}, "--disable-bias-linear"),
    "rows of q and k": ("llama", {"rotary_interleaved": True}, {}, "rotary_interleaved"),
    "gated output": ("qwen3", {"attention_output_gate": True}, {}, "attention_output_gate"),
    "other attention": ("qwen3", {"experimental_attention_variant": "dsa"}, {}, "variant"),
    "qkv bias": ("llama", {"add_qkv_bias": True}, {}, "add_qkv_bias"),
    "no qkv bias": ("qwen2", {"add_qkv_bias": False}, {}, "add_qkv_bias"),
    "norms of q and k": ("llama", {"qk_layernorm": True}, {}, "qk_layernorm"),
    "no norms of q and k": ("qwen3", {"qk_layernorm": False}, {}, "qk_layernorm"),
    "fp8": ("qwen3", {"fp8_param": True}, {}, "--fp8-param-gather"),
    "sink": ("qwen3", {"softmax_type": "learnable"}, {}, "softmax_type"),
    # linear_qkv and linear_proj have the same shapes, but other rows.
    "heads": ("qwen3", {"num_attention_heads": 8, "num_query_groups": 4, "kv_channels": 12}, {},
              "num_attention_heads"),
    "experts": ("qwen3", {"num_moe_experts": 4}, {}, "--num-experts"),
    "shared expert": ("qwen3_moe", {"moe_shared_expert_intermediate_size": 32}, {}, "shared"),
    "shared gate": ("glm4_moe", {"moe_shared_expert_gate": True}, {}, "shared_expert_gate"),
    "no router bias": ("glm4_moe", {"moe_router_enable_expert_bias": False}, {}, "expert_bias"),
    "latent experts": ("qwen3_moe", {"moe_latent_size": 16}, {}, "moe_latent_size"),
    "dense layers": ("qwen3_moe", {"moe_layer_freq": [1, 0, 1, 1]}, {}, "moe_layer_freq"),
    "mtp": ("qwen3", {"mtp_num_layers": 1}, {}, "mtp_num_layers"),
    "latent ranks": ("deepseek_v3", {"qk_head_dim": 20, "v_head_dim": 24}, {}, "qk_head_dim"),
    "rows of the rotary part": ("deepseek_v3", {}, {"rope_interleave": False}, "rope_interleave"),
    "biases of config.json": ("llama", {}, {"attention_bias": True}, "attention_bias"),
    "fused down": ("deepseek_v3", {"mla_down_proj_fusion": True}, {}, "mla_down_proj_fusion"),
}  # fmt: skip
# The same for settings that are noted.
NOTED = {
    "epsilon": ("qwen3", {"layernorm_epsilon": 1e-5}, {}, "layernorm_epsilon is 1e-05"),
    "activation": ("qwen3", {}, {"hidden_act": "gelu"}, "activation_func is 'silu'"),
    "top k": ("qwen3_moe", {"moe_router_topk": 1}, {}, "moe_router_topk"),
    "softmax first": ("qwen3_moe", {"moe_router_pre_softmax": True}, {}, "moe_router_pre_softmax"),
    "window": ("llama", {"window_size": [128, 0]}, {}, "window_size"),
    "mtp that is not trained": ("glm4_moe", {}, {"num_nextn_predict_layers": 1}, "multi-token"),
}
ON = (
    "--update-weight-mode delta --update-weight-transport disk --update-weight-disk-dir {work}/road"
)
HF = " --update-weight-hf-checkpoint {work}/"
# Command lines of Megatron-LM: (line, when it is refused, and words of the refusal).
LINES = {
    "as it is": (ON, None),
    "with its checkpoint": (ON + HF + "qwen3", None),
    "off": ("--apply-layernorm-1p", None),
    "experts": (ON + EXPERTS.replace("-size 2", "-size 1"), None),
    "gamma - 1": (ON + " --apply-layernorm-1p", "validation: layernorm_zero_centered_gamma"),
    "rows of q and k": (ON + " --rotary-interleaved", "validation: rotary_interleaved"),
    "tied here only": (ON + HF + "tied", "validation: share_embeddings_and_output_weights"),
    "another model": (ON + HF + "llama", "validation: qk_layernorm"),
    "no map": (ON + HF + "gpt2", "validation: there is no map for model_type 'gpt2'"),
    "no checkpoint": (ON + HF + "none", "validation: --update-weight-hf-checkpoint"),
    "no directory": (ON + "/a/b", "validation: road.shared_fs.dir"),
    "no launcher": ("--update-weight-mode delta", "validation: road.kind: a trainer on mpi_rma"),
    "whole tensors": (ON + " --update-weight-snapshot none", "validation: snapshot: none is not"),
    "INT4 without a snapshot": (
        ON + HF + "int4 --update-weight-snapshot none --update-weight-config {work}/frames.yaml",
        "groups in INT4, which ranks divide: source ranks gather them "
        "(--update-weight-snapshot host)"),
    "INT4": (ON + HF + "int4 --update-weight-config {work}/frames.yaml", None),
    "a rollout's flag": (ON + " --update-weight-delta-chunk-bytes 65536", "receiver.chunk_size"),
    "combined": (ON + " --update-weight-encoding deltas --update-weight-delta-encoding xor",
                 "parsing: --update-weight-encoding"),
    "colocated": (ON + " --colocate", "parsing: --colocate"),
    "colocated by file": ("--update-weight-config {work}/delta.yaml --colocate", "parsing: --colo"),
    "hook": (ON + " --custom-delta-pre-push-path no.such.f", "parsing: --custom-delta-pre-push"),
    "file": ("--update-weight-config {work}/none.yaml", "none.yaml"),
}  # fmt: skip


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """The results of one process: importing megatron-core takes long."""
    work = tmp_path_factory.mktemp("settings")
    config = tiny_config.HF | {"num_hidden_layers": 2, "head_dim": 16, "model_type": "qwen3",
                               "tie_word_embeddings": False}  # fmt: skip
    for name, change in (("qwen3", {}), ("tied", {"tie_word_embeddings": True}),
                         ("int4", {"quantization_config": {"quant_method": "compressed-tensors"}}),
                         ("llama", {"model_type": "llama"}), ("gpt2", {"model_type": "gpt2"})):  # fmt: skip
        (work / name).mkdir()
        (work / name / "config.json").write_text(json.dumps(config | change))
    (work / "int4/model.safetensors").touch()
    (work / "frames.yaml").write_text("road: { layout: frames }\n")
    (work / "delta.yaml").write_text(f"road: {{ kind: shared_fs, shared_fs: {{ dir: {work}/road }} }}\n")
    models = [[{"family": family}, {}, {}] for family in tiny_config.FAMILIES]
    models += [[{"family": f}, s, hf] for f, s, hf, _ in (REFUSED | NOTED).values()]
    lines = [[*ARGUMENTS.split(), *text.format(work=work).split()] for text, _ in LINES.values()]
    (work / "cases.json").write_text(
        json.dumps({"models": models, "lines": lines, "work": str(work)})
    )
    line = [venv_python(), HERE / "settings_job.py", work / "cases.json"]
    result = subprocess.run(line, env=environment(), capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stderr[-6000:]
    (found,) = [line for line in result.stdout.splitlines() if line.startswith("ANSWERS ")]
    found = json.loads(found.removeprefix("ANSWERS "))
    names = [*tiny_config.FAMILIES, *REFUSED, *NOTED]
    found["models"] = dict(zip(names, found["models"], strict=True))
    found["bridge"] = dict(zip(names, found["bridge"], strict=True))
    found["lines"] = dict(zip(LINES, found["lines"], strict=True))
    return found


def test_every_field_of_the_installed_megatron_core_is_in_the_list(answers):
    assert answers["unlisted"] == [], "say in settings.toml what they do to the weights"


def test_an_unlisted_field_is_noted_unless_it_has_its_default(answers):
    default, other = answers["later"]
    assert default == []
    assert len(other) == 1 and other[0].startswith("rows_reversed=True: ")


@pytest.mark.parametrize("family", tiny_config.FAMILIES)
def test_a_family_without_changes_is_neither_refused_nor_noted(answers, family):
    assert answers["models"][family] == [None, []]
    assert answers["bridge"][family] is None


@pytest.mark.parametrize("case", REFUSED)
def test_a_setting_that_the_map_does_not_handle_is_refused(answers, case):
    refused, _ = answers["models"][case]
    assert refused is not None and REFUSED[case][3] in refused
    assert REFUSED[case][0] in refused, "the family is named"
    assert answers["bridge"][case] == refused, "from Megatron-Bridge's configuration"


@pytest.mark.parametrize("case", NOTED)
def test_a_setting_that_changes_what_is_computed_is_noted(answers, case):
    refused, notes = answers["models"][case]
    assert refused is None and len(notes) == 1 and NOTED[case][3] in notes[0]


@pytest.mark.parametrize("case", LINES)
def test_megatron_lm_refuses_at_its_arguments(answers, case):
    wanted, found = LINES[case][1], answers["lines"][case]
    assert found is None if wanted is None else wanted in str(found), found


def test_a_session_refuses_a_model_with_such_a_setting(work):
    """Even if nothing checked the settings before the model was built."""
    job = Job(work, steps=1, settings={"layernorm_zero_centered_gamma": True})
    job.over_disk(rollouts=())
    result = jobs.finish(job.start(trainers=1))
    assert result.returncode != 0
    assert "layernorm_zero_centered_gamma (--apply-layernorm-1p) is True" in shown(result)
    assert not list(work.glob("road/*")), "nothing was published"


def test_a_session_waits_for_its_version_by_digest(work):
    """Reports of other runs, with the same version number or a later one, do not count."""
    line = [venv_python(), HERE / "session_wait.py", work]
    result = subprocess.run(line, env=environment(), capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stderr[-4000:]
    note, vain, until = result.stdout.splitlines()
    assert "not every rollout holds version 1 of this run" in note
    assert f"same: version 1, digest {'0' * 32}" in note and "later: version 7" in note
    assert (vain, until) == ("WAITED in vain", "WAITED until ['one']")
