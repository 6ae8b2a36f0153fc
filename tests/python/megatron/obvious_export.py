# SPDX-License-Identifier: Apache-2.0
"""The reference export: Hugging Face tensors from the shards of all ranks, by concatenating whole
parameters and taking views. Shares nothing with the package; moves bits, not numbers."""

import numpy as np


def export(ranks, config):
    """`ranks`: the files that train.py writes for each rank. Returns {HF name: array of bits}."""
    out = {}
    for stage in sorted({rank["place"]["pp"] for rank in ranks}):
        here = [rank for rank in ranks if rank["place"]["pp"] == stage]
        dense = sorted((r for r in here if r["place"]["dp"] == 0), key=lambda r: r["place"]["tp"])
        experts = sorted(
            (r for r in here if r["place"]["edp"] == 0), key=lambda r: r["place"]["ep"]
        )
        for chunk, names in enumerate(dense[0]["chunks"]):
            layers = dense[0]["layers"][chunk]
            for name in names:
                if ".mlp.experts." in name:
                    _expert(out, name, layers, [r["chunks"][chunk][name] for r in experts], config)
                else:
                    _dense(out, name, layers, [r["chunks"][chunk][name] for r in dense], config)
    if config["tie_word_embeddings"]:
        out.pop("lm_head.weight", None)
    return out


def _dense(out, name, layers, parts, config):
    vocab = config["vocab_size"]
    if name == "embedding.word_embeddings.weight":
        out["model.embed_tokens.weight"] = np.concatenate(parts)[:vocab]
    elif name == "output_layer.weight":
        out["lm_head.weight"] = np.concatenate(parts)[:vocab]
    elif name == "decoder.final_layernorm.weight":
        out["model.norm.weight"] = parts[0]
    else:
        _, _, local, rest = name.split(".", 3)
        _block(out, f"model.layers.{layers[int(local)]}.", rest, parts, config)


def _block(out, prefix, rest, parts, config):
    renamed = {
        "input_layernorm.weight": "input_layernorm.weight",
        "pre_mlp_layernorm.weight": "post_attention_layernorm.weight",
        "self_attention.q_layernorm.weight": "self_attn.q_norm.weight",
        "self_attention.k_layernorm.weight": "self_attn.k_norm.weight",
        "mlp.router.weight": "mlp.gate.weight",
        "mlp.router.expert_bias": "mlp.gate.e_score_correction_bias",
    }
    if rest in renamed:
        out[prefix + renamed[rest]] = parts[0]
    elif rest == "self_attention.linear_proj.weight":
        out[prefix + "self_attn.o_proj.weight"] = np.concatenate(parts, axis=1)
    elif rest.endswith("linear_fc2.weight"):
        name = rest.replace("linear_fc2", "down_proj")
        out[prefix + name] = np.concatenate(parts, axis=1)
    elif rest.endswith("linear_fc1.weight"):
        halves = [np.split(part, 2) for part in parts]
        gate, up = (rest.replace("linear_fc1", f"{half}_proj") for half in ("gate", "up"))
        out[prefix + gate] = np.concatenate([gate for gate, _ in halves])
        out[prefix + up] = np.concatenate([up for _, up in halves])
    elif rest.startswith("self_attention.linear_qkv."):
        groups, heads = config["num_key_value_heads"], config["num_attention_heads"]
        kind, tail = rest.rsplit(".", 1)[1], parts[0].shape[1:]
        fused = np.concatenate(parts).reshape(groups, heads // groups + 2, -1, *tail)
        out[prefix + f"self_attn.q_proj.{kind}"] = fused[:, :-2].reshape(-1, *tail)
        out[prefix + f"self_attn.k_proj.{kind}"] = fused[:, -2].reshape(-1, *tail)
        out[prefix + f"self_attn.v_proj.{kind}"] = fused[:, -1].reshape(-1, *tail)
    else:
        raise AssertionError(f"the obvious export does not know {rest}")


def _expert(out, name, layers, parts, config):
    _, _, local, _, _, _, number, kind, _ = name.split(".")
    each = config.get("num_experts", config.get("n_routed_experts")) // len(parts)
    for ep_rank, part in enumerate(parts):
        prefix = f"model.layers.{layers[int(local)]}.mlp.experts.{ep_rank * each + int(number)}."
        if kind == "linear_fc1":
            out[prefix + "gate_proj.weight"], out[prefix + "up_proj.weight"] = np.split(part, 2)
        else:
            out[prefix + "down_proj.weight"] = part
