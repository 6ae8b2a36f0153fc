# SPDX-License-Identifier: Apache-2.0
"""Makes a small random model and several training steps of it, as Hugging Face checkpoints.

    python make_models.py OUT VERSIONS KIND...          KIND: qwen3, qwen3_tied, qwen3_moe,
                                                    deepseek, qwen3_blocks, qwen3_moe_blocks
    python make_models.py --tokens DIRECTORY            for checkpoints in FP8 blocks

OUT/KIND/v00, v01, ... are the checkpoints, in bfloat16; OUT/KIND/tokens.json has the tokens that
transformers generates from each in float32. An engine's own environment runs it.
"""

import json
import shutil
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging

SIZES = {
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,  # large, so that other weights give other tokens
    "bos_token_id": 0,
    "eos_token_id": 1,
}
# Multi-head latent attention: engines compute further tensors from kv_b_proj after loading.
MLA = {
    "num_key_value_heads": 4,
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 16,
    "v_head_dim": 16,
    "rope_parameters": {  # the only kind that SGLang supports on a CPU
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 2.0,
        "original_max_position_embeddings": 128,
        "beta_fast": 32,
        "beta_slow": 1,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
    },
    "first_k_dense_replace": 2,  # no experts
    "n_routed_experts": 4,
    "n_group": 1,
    "topk_group": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "moe_layer_freq": 1,
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
}
MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
# Split over two ranks, no 128x128 block is divided; some blocks at the ends are smaller.
BLOCKS = {"hidden_size": 192, "intermediate_size": 512, "head_dim": 128, "initializer_range": 0.1}
MOE_BLOCKS = {"moe_intermediate_size": 128}
PROMPTS = ([5, 17, 42, 99, 3, 250, 11, 8], [77, 200, 12])
NEW_TOKENS = 12


def config_of(kind):
    if kind == "qwen3_moe":
        return AutoConfig.for_model("qwen3_moe", **SIZES, **MOE, tie_word_embeddings=False)
    if kind == "qwen3_blocks":
        return AutoConfig.for_model("qwen3", **SIZES | BLOCKS, tie_word_embeddings=True)
    if kind == "qwen3_moe_blocks":
        sizes = SIZES | BLOCKS | MOE | MOE_BLOCKS
        return AutoConfig.for_model("qwen3_moe", **sizes, tie_word_embeddings=False)
    if kind == "deepseek":
        sizes = {key: value for key, value in SIZES.items() if key != "head_dim"} | MLA
        return AutoConfig.for_model("deepseek_v3", **sizes, tie_word_embeddings=False)
    return AutoConfig.for_model("qwen3", **SIZES, tie_word_embeddings=kind == "qwen3_tied")


def step(tensors, generator, fraction=0.02):
    """Changes about 2 % of the values; every third tensor stays unchanged."""
    for number, name in enumerate(sorted(tensors)):
        if number % 3 == 2:
            continue
        tensor = tensors[name]
        moved = torch.rand(tensor.shape, generator=generator) < fraction
        moved.view(-1)[int(torch.randint(moved.numel(), (1,), generator=generator))] = True
        noise = torch.randn(tensor.shape, generator=generator) * 0.2
        tensors[name] = torch.where(moved, tensor.float() + noise, tensor.float()).to(tensor.dtype)


def dequantized(path):
    """A model in float32 with the values of a checkpoint in FP8 blocks."""
    config = AutoConfig.from_pretrained(path)
    del config.quantization_config
    tensors = load_file(path / "model.safetensors")
    weights = {}
    for name, tensor in tensors.items():
        scales = tensors.get(f"{name}_scale_inv")
        if scales is not None:
            whole = scales.repeat_interleave(128, 0).repeat_interleave(128, 1)
            tensor = tensor.float() * whole[: tensor.shape[0], : tensor.shape[1]]
        if not name.endswith("_scale_inv"):
            weights[name] = tensor.float()
    plain = path.with_name(f"{path.name}.float32")
    plain.mkdir()
    config.save_pretrained(plain)
    save_file(weights, plain / "model.safetensors", {"format": "pt"})
    model = AutoModelForCausalLM.from_pretrained(plain, dtype=torch.float32)
    shutil.rmtree(plain)
    return model


def tokens_of(model):
    model.eval()
    model.generation_config.eos_token_id = None
    found = []
    for prompt in PROMPTS:
        options = {"max_new_tokens": NEW_TOKENS, "min_new_tokens": NEW_TOKENS, "do_sample": False}
        with torch.no_grad():
            out = model.generate(torch.tensor([prompt]), pad_token_id=0, **options)
        found.append(out[0, len(prompt) :].tolist())
    return found


def make(out, versions, kind):
    torch.manual_seed(7)
    first = out / "v00"
    model = AutoModelForCausalLM.from_config(config_of(kind)).to(torch.bfloat16)
    model.config.eos_token_id = model.generation_config.eos_token_id = None
    model.save_pretrained(first)
    tensors = load_file(first / "model.safetensors")
    generator = torch.Generator().manual_seed(11)
    for version in range(1, versions + 1):
        step(tensors, generator)
        path = out / f"v{version:02d}"
        path.mkdir()
        shutil.copy(first / "config.json", path)
        save_file(tensors, path / "model.safetensors", {"format": "pt"})
    load = AutoModelForCausalLM.from_pretrained
    write_tokens(out, lambda path: load(path, dtype=torch.float32))


def write_tokens(out, load):
    tokens = [tokens_of(load(path)) for path in sorted(out.glob("v??"))]
    (out / "tokens.json").write_text(json.dumps({"prompts": PROMPTS, "tokens": tokens}))


def main(out, versions, *kinds):
    torch.set_num_threads(1)
    logging.disable_progress_bar()
    if out == "--tokens":
        write_tokens(Path(versions), dequantized)
        return
    for kind in kinds:
        make(Path(out) / kind, int(versions), kind)


if __name__ == "__main__":
    main(*sys.argv[1:])
