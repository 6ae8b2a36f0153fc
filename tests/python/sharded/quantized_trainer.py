# SPDX-License-Identifier: Apache-2.0
"""A rank of an FSDP2 trainer whose rollouts have FP8 blocks: test_quantize_trainers.py.

    quantized_trainer.py FP8 BF16 ROAD OUT

Saves in OUT `full_tensor()` of every version, in bfloat16."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch import nn
from torch.distributed.fsdp import fully_shard

import driftless
import driftless.torch


def main():
    fp8, bf16, road, out = sys.argv[1:5]
    driftless.torch.torch_environment()
    dist.init_process_group("gloo")
    model = nn.Sequential(nn.Linear(140, 300), nn.LayerNorm(300), nn.Linear(300, 140))
    found = load_file(Path(bf16, "model.safetensors"))
    model.load_state_dict({name: tensor.float() for name, tensor in found.items()})
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    sets = ["road.layout=flush", "quantize.scheme=fp8_block"]
    with driftless.publish(model, road, fp8, overrides=sets) as run:
        for step in range(1, 4):
            optimizer.zero_grad()
            inputs = torch.randn(4, 140, generator=torch.Generator().manual_seed(step))
            model(inputs).square().mean().backward()
            optimizer.step()
            run.publish()
            full = {n: t.full_tensor().bfloat16() for n, t in model.state_dict().items()}
            if dist.get_rank() == 0:
                save_file(full, Path(out, f"step{step}.safetensors"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
