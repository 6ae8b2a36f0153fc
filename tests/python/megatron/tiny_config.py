# SPDX-License-Identifier: Apache-2.0
"""config.json of the tests' models: all sizes differ, so that a mix-up shows."""

VOCAB = 250
ROPE_THETA = 10000.0

HF = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 24,
    "intermediate_size": 96,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 64,
    "rope_parameters": {"rope_theta": ROPE_THETA, "rope_type": "default"},
    "hidden_act": "silu",
}
MOE = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [0],
}


_ROUTED = {
    "n_routed_experts": 4,
    "n_shared_experts": 2,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.5,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
FAMILIES = {
    "llama": {},
    "qwen2": {
        "head_dim": 16
    },  # hidden_size / num_attention_heads: the only head size that transformers' model supports
    "qwen3": {},
    "qwen3_moe": MOE,
    "glm4_moe": {
        **_ROUTED,
        "attention_bias": True,
        "use_qk_norm": True,
        "partial_rotary_factor": 0.5,
        "rope_parameters": {
            "rope_theta": ROPE_THETA,
            "rope_type": "default",
            "partial_rotary_factor": 0.5,
        },
    },
    "deepseek_v3": {
        **_ROUTED,
        "q_lora_rank": 40,
        "kv_lora_rank": 48,
        "qk_nope_head_dim": 24,
        "qk_rope_head_dim": 8,
        "v_head_dim": 20,
        "head_dim": 8,
        "num_key_value_heads": 4,
        "rope_interleave": True,
    },
}


def hf_config(job):
    """`job` names a family, or only says whether there are experts; its `sizes` override ours."""
    family = job.get("family", "qwen3_moe" if job.get("moe") else "qwen3")
    tied = bool(job.get("tied"))
    found = {**HF, **FAMILIES[family], **job.get("sizes", {})}
    return {**found, "model_type": family, "tie_word_embeddings": tied}
