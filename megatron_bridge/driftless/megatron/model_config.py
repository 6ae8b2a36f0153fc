# SPDX-License-Identifier: Apache-2.0
"""Describes a Megatron model in the keys of a Hugging Face config.json.

Used if no config.json is given. The family follows from the model's features. If that guess is
wrong, binding refuses the model and names the first parameter that does not fit.
"""

from __future__ import annotations

import sys
from typing import Any

from .errors import MapError


def config_of(model: Any, args: Any) -> dict[str, Any]:
    """The configuration of a GPTModel (one model chunk, unwrapped)."""
    tied = bool(model.share_embeddings_and_output_weights)
    return hf_config_of(model.config, tied, _vocabulary(model, args))


def hf_config_of(config: Any, tied: bool, vocab_size: int) -> dict[str, Any]:
    """The same for a TransformerConfig, with the values that it does not have."""
    found: dict[str, Any] = {
        "num_hidden_layers": config.num_layers,
        "hidden_size": config.hidden_size,
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_query_groups or config.num_attention_heads,
        "head_dim": config.kv_channels,
        "intermediate_size": config.ffn_hidden_size,
        "vocab_size": vocab_size,
        "tie_word_embeddings": tied,
        "num_nextn_predict_layers": getattr(config, "mtp_num_layers", None) or 0,
    }
    bias = bool(getattr(config, "add_qkv_bias", False))
    norm = bool(getattr(config, "qk_layernorm", False))
    if getattr(config, "multi_latent_attention", False):
        del found["head_dim"]  # MLA has several sizes; Hugging Face's head_dim is not kv_channels
    if getattr(config, "num_moe_experts", None):
        found |= _experts(config, bias, norm)
    elif getattr(config, "multi_latent_attention", False):
        raise MapError("multi-latent attention without experts is in no map")
    else:
        found["model_type"] = "qwen3" if norm else "qwen2" if bias else "llama"
    return found


def _experts(config: Any, bias: bool, norm: bool) -> dict[str, Any]:
    dense = [n for n, moe in enumerate(moe_pattern(config)) if not moe]
    shared = getattr(config, "moe_shared_expert_intermediate_size", None) or 0
    inner = config.moe_ffn_hidden_size or config.ffn_hidden_size
    found: dict[str, Any] = {"moe_intermediate_size": inner}
    if getattr(config, "multi_latent_attention", False):
        found |= {
            "model_type": "deepseek_v3",
            "q_lora_rank": config.q_lora_rank,
            "kv_lora_rank": config.kv_lora_rank,
            "qk_nope_head_dim": config.qk_head_dim,
            "qk_rope_head_dim": config.qk_pos_emb_head_dim,
            "v_head_dim": config.v_head_dim,
        }
    elif shared or getattr(config, "moe_router_enable_expert_bias", False):
        found |= {"model_type": "glm4_moe", "attention_bias": bias, "use_qk_norm": norm}
    else:
        more = {"num_experts": config.num_moe_experts, "mlp_only_layers": dense}
        return found | {"model_type": "qwen3_moe", **more}
    if dense != list(range(len(dense))):
        raise MapError(f"{found['model_type']} has its dense layers first; here they are {dense}")
    if shared % inner:
        raise MapError(f"{shared} rows of shared experts are not a multiple of {inner}, one expert")
    return found | {
        "n_routed_experts": config.num_moe_experts,
        "n_shared_experts": shared // inner,
        "first_k_dense_replace": len(dense),
    }


def moe_pattern(config: Any) -> list[bool]:
    """Per layer: whether it has experts."""
    freq = getattr(config, "moe_layer_freq", 1)
    if isinstance(freq, int):
        return [n % freq == 0 for n in range(config.num_layers)]
    return [bool(one) for one in freq]


def _vocabulary(model: Any, args: Any) -> int:
    """The size of the vocabulary, without padding if that is known."""
    padded = int(getattr(args, "padded_vocab_size", None) or model.vocab_size)
    variables = sys.modules.get("megatron.training.global_vars")
    if variables is not None:
        tokenizer = getattr(variables, "_GLOBAL_TOKENIZER", None)
        size = getattr(tokenizer, "vocab_size", None)
        if isinstance(size, int) and 0 < size <= padded:
            return size
    return padded
