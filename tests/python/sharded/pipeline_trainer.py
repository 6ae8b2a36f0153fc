# SPDX-License-Identifier: Apache-2.0
"""A rank of a pipeline of 2 stages x FSDP2 of 2, under torchrun's variables: test_sharded.py.

    pipeline_trainer.py CONFIG OUT

Each stage has its own layers, under their names in the whole model, and a norm that FSDP does not
wrap. Each rank of the second stage has an expert that no other rank has. Saves in OUT
`full_tensor()` of all stages for every version.
"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

import driftless
import driftless.torch

STEPS, WIDTH = 3, 20


class Stage(nn.Module):
    def __init__(self, stage, rank):
        super().__init__()
        if stage == 0:
            self.embed = nn.Embedding(30, WIDTH)
        self.layers = nn.ModuleDict(
            {str(number): nn.Linear(WIDTH, WIDTH) for number in (2 * stage, 2 * stage + 1)}
        )
        if stage == 1:
            self.experts = nn.ModuleDict({str(rank): nn.Linear(WIDTH, 3, bias=False)})
        self.register_buffer(f"seen_by_{stage}", torch.zeros((), dtype=torch.int64))
        self.stage = stage

    def forward(self, tokens):
        if self.stage == 0:
            x = self.embed(tokens)
        else:
            x = torch.arange(tokens.numel() * WIDTH).reshape(-1, WIDTH).sin()
        for layer in self.layers.values():
            x = x + layer(x)
        getattr(self, f"seen_by_{self.stage}").add_(1)
        loss = x.square().mean()
        for expert in self.experts.values() if self.stage else ():
            loss = loss + expert(x).square().mean()
        return loss


def sharded(stage, mesh, rank):
    """The experts stay plain: FSDP does not wrap them."""
    for layer in stage.layers.values():
        fully_shard(layer, mesh=mesh)
    plain = set(stage.experts.parameters()) if stage.stage else set()
    fully_shard(stage, mesh=mesh, ignored_params=plain)
    norm = nn.LayerNorm(WIDTH)  # the same on all ranks of the stage
    stage.register_module(f"norm_{stage.stage}", norm)
    return stage


def whole(stage):
    """All stages on rank 0, by torch alone."""
    found = {}
    for name, tensor in stage.state_dict().items():
        full = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        found[name] = full.detach().to(torch.bfloat16) if full.is_floating_point() else full.clone()
    ranks = [None] * dist.get_world_size()
    dist.all_gather_object(ranks, found)
    return {name: tensor for rank in reversed(ranks) for name, tensor in rank.items()}


def main():
    config, out = sys.argv[1:]
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "dp"))
    torch.manual_seed(rank // 2)
    stage = sharded(Stage(rank // 2, rank), mesh["dp"], rank)
    optimizer = torch.optim.SGD(stage.parameters(), lr=0.05)
    source = driftless.torch.ShardedModel(stage)
    versions = [whole(stage)]
    job = driftless.Job(driftless.Config.load(config), "trainer", launched=False)
    publisher = driftless.Publisher(job, source, group=driftless.torch.publisher_group())
    source.publish_after(optimizer, publisher)
    for step in range(STEPS):
        optimizer.zero_grad()
        stage(torch.randint(30, (6,), generator=torch.Generator().manual_seed(step))).backward()
        norm = getattr(stage, f"norm_{rank // 2}")
        norm.weight.grad = torch.full((WIDTH,), 1.0 + step)
        optimizer.step()
        versions.append(whole(stage))
    assert publisher.version == STEPS
    publisher.declare_end()
    job.close()
    if rank == 0:
        torch.save(versions, Path(out, "versions.pt"))
    dist.barrier()
    dist.destroy_process_group()


main()
