"""config.json of the tests' models: sizes that differ from each other, so that a mix-up shows."""

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


def hf_config(job):
    config = {**HF, "model_type": "qwen3", "tie_word_embeddings": bool(job.get("tied"))}
    if job.get("moe"):
        config |= {**MOE, "model_type": "qwen3_moe"}
    return config
