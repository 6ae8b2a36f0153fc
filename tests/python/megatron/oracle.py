# SPDX-License-Identifier: Apache-2.0
"""Prints, as JSON, how far a Megatron model's logits are from those of the family's model in
`transformers` with the weights that we exported; and the same with one wrong row in one tensor.

    oracle.py WORK               one process
"""

import argparse
import json
import os
import sys
import warnings
from pathlib import Path

warnings.simplefilter("ignore")
os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1")

import cpu_shim  # noqa: E402  before megatron
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402

dist.init_process_group("gloo")

import driftless.megatron  # noqa: E402
import tiny_config  # noqa: E402
import tiny_model  # noqa: E402
from megatron.core import parallel_state  # noqa: E402

SHIM = False
MODELS = {name: {"family": name} for name in tiny_config.FAMILIES}
MODELS["qwen3_tied"] = {"family": "qwen3", "tied": True}


def shimmed():
    """Active in Megatron's code only: transformers must not see the shim."""
    global SHIM
    if not SHIM:
        cpu_shim.after_import()
        SHIM = True
    else:
        cpu_shim._mode.__enter__()


def megatron_logits(job, road, tokens):
    shimmed()
    trainer = tiny_model.Trainer({**job, "tp": 1, "pp": 1, "ep": 1, "dtype": "float32"})
    with torch.no_grad():
        generator = torch.Generator().manual_seed(3)
        # so that norms are not all ones, and no tensor is zero
        for parameter in trainer.model[0].parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.02)
        for name, buffer in trainer.model[0].named_buffers():
            if name.endswith("expert_bias"):
                buffer.add_(torch.randn(buffer.shape, generator=generator) * 0.1)
    flags = ["--update-weight-mode", "delta", "--update-weight-transport", "disk",
             "--update-weight-disk-dir", str(road)]  # fmt: skip
    parser = driftless.megatron.add_arguments(argparse.ArgumentParser())
    # The hook derives the configuration; it needs only the size of the vocabulary without padding.
    from driftless.megatron.model_config import config_of

    model = trainer.model[0].module
    known = config_of(model, None) | {"vocab_size": tiny_config.VOCAB}
    session = driftless.megatron.attach(
        trainer.model, trainer.optimizer, parser.parse_args(flags), known
    )
    size = tokens.shape[1]
    mask = torch.triu(torch.ones(size, size, dtype=torch.bool), 1)[None, None]
    with torch.no_grad():
        logits = model.eval()(tokens, torch.arange(size).expand(len(tokens), -1), mask)
    session.close()
    parallel_state.destroy_model_parallel()
    cpu_shim._mode.__exit__(None, None, None)
    return logits[..., : tiny_config.VOCAB], known


def transformers_logits(base, config, tokens):
    (base / "config.json").write_text(json.dumps({"dtype": "float32", **config}))
    model, info = AutoModelForCausalLM.from_pretrained(
        base, attn_implementation="eager", dtype=torch.float32, local_files_only=True,
        output_loading_info=True,
    )  # fmt: skip
    with torch.no_grad():
        return (
            model.eval()(tokens).logits,
            model,
            {k: sorted(map(str, v)) for k, v in info.items() if v},
        )


def checkpoint_shapes(model, path):
    """The shapes that transformers itself saves: {name: shape}."""
    model.save_pretrained(path)
    tensors = {}
    for file in path.glob("*.safetensors"):
        tensors |= load_file(file)
    return {name: list(tensor.shape) for name, tensor in tensors.items()}


def main():
    work, found = Path(sys.argv[1]), {}
    tokens = torch.randint(
        0, tiny_config.VOCAB, (2, 12), generator=torch.Generator().manual_seed(5)
    )
    for name, job in MODELS.items():
        road = work / name
        wanted, known = megatron_logits(job, road, tokens)
        config = tiny_config.hf_config(job)
        agree = {key: known[key] == config[key] for key in known if key in config}
        ours, model, problems = transformers_logits(road / "base", config, tokens)
        saved = checkpoint_shapes(model, road / "saved")
        file = next((road / "base").glob("*.safetensors"))
        tensors = load_file(file)
        wrong = tensors["model.layers.1.self_attn.o_proj.weight"]
        wrong[[0, 1]] = wrong[[1, 0]]
        save_file(tensors, file, {"format": "pt"})
        control, _, _ = transformers_logits(road / "base", config, tokens)
        found[name] = {
            "close": bool(torch.allclose(ours, wanted, atol=1e-5, rtol=1e-4)),
            "farthest": float((ours - wanted).abs().max()),
            "control_close": bool(torch.allclose(control, wanted, atol=1e-5, rtol=1e-4)),
            "differs_in_config": [key for key, same in agree.items() if not same],
            "problems": problems,
            "saved": saved,
            "config": config,
        }
    print("ORACLE " + json.dumps(found), flush=True)
    dist.destroy_process_group()


main()
