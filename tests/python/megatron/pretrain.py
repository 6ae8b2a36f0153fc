# SPDX-License-Identifier: Apache-2.0
"""Runs an unchanged Megatron-LM script on the CPU, as `python -m driftless.megatron SCRIPT ARGS...`
does.

    pretrain.py SCRIPT ARGS...      after each step, rank r saves its shards in $SHARDS

Adds only the shim and the saving of shards; everything else is the package.
"""

import os
import pickle
import sys
import warnings
from pathlib import Path

warnings.simplefilter("ignore")

import cpu_shim  # before megatron
import torch


def main():
    sys.path.insert(0, os.path.dirname(os.path.abspath(sys.argv[1])))
    from driftless.megatron import launch, torch_environment

    torch_environment()
    os.environ["LOCAL_WORLD_SIZE"] = os.environ["WORLD_SIZE"]
    cpu_shim.stub_triton()
    import megatron.training.training as training

    cpu_shim.after_import()
    cpu_shim.allow_megatron_training()
    _leave_shards(training)
    return launch.main(sys.argv[1:])


def _leave_shards(training):
    """Saves the shards after every step, as train.py does."""
    step = training.train_step

    def wrapped(forward, data, model, optimizer, *args, **kwargs):
        result = step(forward, data, model, optimizer, *args, **kwargs)
        for chunk in model:
            if chunk.ddp_config.overlap_param_gather:
                chunk.start_param_sync(force_sync=True)
        wrapped.steps += 1
        _leave(model, f"step{wrapped.steps}")
        return result

    wrapped.steps = 0
    training.train_step = wrapped


def _leave(model, label):
    from megatron.core import parallel_state as ps

    place = {
        "tp": ps.get_tensor_model_parallel_rank(),
        "pp": ps.get_pipeline_model_parallel_rank(),
        "dp": ps.get_data_parallel_rank(),
        "ep": ps.get_expert_model_parallel_rank(),
        "edp": ps.get_expert_data_parallel_rank(),
        "rank": torch.distributed.get_rank(),
    }
    chunks, layers = [], []
    for chunk in model:
        while hasattr(chunk, "module"):
            chunk = chunk.module
        bits = {}
        for name, p in chunk.named_parameters():
            bits[name] = (2, tuple(p.shape), p.detach().view(torch.int16).numpy().tobytes())
        chunks.append(bits)
        layers.append([layer.layer_number - 1 for layer in chunk.decoder.layers])
    path = Path(os.environ["SHARDS"]) / f"{label}_{place['rank']}.pickle"
    path.write_bytes(pickle.dumps({"place": place, "chunks": chunks, "layers": layers}))


if __name__ == "__main__":
    sys.exit(main())
