# SPDX-License-Identifier: Apache-2.0
"""A rank of a trainer with sharded parameters, for any launcher: test_sharded.py,
test_launchers.py.

    fsdp_trainer.py LAYOUT CONFIG OUT [RANK]

Trains, publishes after every step by the optimizer's hook, and saves in OUT `full_tensor()` of
every version under the engine's names, and the bytes that it kept. At one step the source of RANK
fails: no rank publishes that version. With DRIFTLESS_TEST_GPU=1 all ranks use one GPU.
"""

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

import driftless
import driftless.torch

DEVICE = "cuda" if os.environ.get("DRIFTLESS_TEST_GPU") == "1" else "cpu"
STEPS, FAILS = 4, 1  # FAILS: the step at which RANK fails
WIDTH, EXPERTS = 36, 6  # uneven: some of 4 ranks get smaller shares


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(WIDTH, 2 * WIDTH, bias=False)
        self.down = nn.Linear(2 * WIDTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.experts = nn.Parameter(torch.randn(EXPERTS, WIDTH, 5) / WIDTH)

    def forward(self, x):
        x = x + self.down(torch.relu(self.up(self.norm(x))))
        experts = self.experts
        whole = experts.full_tensor() if isinstance(experts, DTensor) else experts
        return x + torch.einsum("bw,ewk->bw", x, whole) / EXPERTS


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.head = nn.Linear(WIDTH, 50, bias=False)
        self.head.weight = self.embed.weight  # tied
        self.register_buffer("counts", torch.arange(3))

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def shard(model, layout):
    if layout == "fsdp":
        mesh = init_device_mesh(DEVICE, (4,))
    elif layout == "hsdp":
        mesh = init_device_mesh(DEVICE, (2, 2), mesh_dim_names=("replicate", "shard"))
    else:
        both = init_device_mesh(DEVICE, (2, 2), mesh_dim_names=("dp", "tp"))
        for layer in model.layers:
            if layout == "ep":
                whole = layer.experts.data
                layer.experts = nn.Parameter(distribute_tensor(whole, both["tp"], [Shard(0)]))
            else:
                plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
                parallelize_module(layer, both["tp"], plan)
        mesh = both["dp"]
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)


def experts_apart(entry):
    if not entry.name.endswith(".experts"):
        return [entry]
    return driftless.torch.unstack(entry, lambda number: f"{entry.name}.{number}.weight")


def whole(model):
    """The weights that the engine should have, by torch alone."""
    found = {}
    for name, tensor in model.state_dict().items():
        if name == "head.weight":
            continue
        full = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        full = full.to(torch.bfloat16) if full.is_floating_point() else full
        if name.endswith(".experts"):
            found |= {f"{name}.{number}.weight": full[number].clone() for number in range(EXPERTS)}
        else:
            found[name] = full.clone()
    return found


class Breaking(driftless.torch.ShardedModel):
    """Fails once in the middle of a pass, on request."""

    left = None

    def ready(self, shard):
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                self.left = None
                raise RuntimeError("injected: the source breaks")
        return super().ready(shard)


def wait_for_rollouts(acks, version):
    """If the test's rollouts leave acks: so that they hold every version, not only the newest."""
    until = time.monotonic() + 60
    while acks.is_dir() and not any(acks.glob(f"*_{version:06d}")):
        assert time.monotonic() < until, f"no rollout got to version {version}"
        time.sleep(0.005)


def main():
    layout, config, out = sys.argv[1:4]
    breaks = int(sys.argv[4]) if len(sys.argv) > 4 else None
    driftless.torch.torch_environment()
    if DEVICE == "cuda":  # several NCCL ranks on one GPU: each must claim to be another host
        os.environ.update(NCCL_HOSTID=f"rank{os.environ['RANK']}", NCCL_SOCKET_IFNAME="lo")
        torch.cuda.set_device(0)
    dist.init_process_group("gloo" if DEVICE == "cpu" else "cpu:gloo,cuda:nccl")
    rank = dist.get_rank()
    torch.manual_seed(3)
    model = Model().to(DEVICE)
    shard(model, layout)
    source = Breaking(model, export=experts_apart, bucket_bytes=1)  # one batch per shard
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    versions = [whole(model)]
    reports = []
    read = driftless.Config.load(config)
    place, group = False, None
    if read.settings()["hub.group"] == "true":
        place = driftless.launch(rank=rank, world=dist.get_world_size())
    else:
        group = driftless.torch.publisher_group()
    job = driftless.Job(read, "trainer", launched=place)
    publisher = driftless.Publisher(job, source, group=group)
    hook = source.publish_after(optimizer, publisher, reports.append)
    for step in range(STEPS):
        tokens = torch.randint(50, (8,), generator=torch.Generator().manual_seed(step)).to(DEVICE)
        optimizer.zero_grad()
        model(tokens).square().mean().backward()
        failing = breaks is not None and step == FAILS
        source.left = 3 if failing and rank == breaks else None
        try:
            optimizer.step()
        except Exception as error:
            assert failing and (rank != breaks or "injected" in str(error)), error
        else:
            assert not failing, f"rank {rank}: a version was published without rank {breaks}'s part"
            versions.append(whole(model))
            if rank == 0:
                wait_for_rollouts(Path(out, "acks"), reports[-1].version)
    hook.remove()
    assert [report.version for report in reports] == list(range(1, len(versions)))
    publisher.declare_end()
    job.close()
    shards = source.shards()
    held = sum(shards[n].tensor.numel() for batch in source.visit() for n, _ in batch)
    Path(out, f"rank{rank}.json").write_text(json.dumps({"elements": held}))
    if rank == 0:
        torch.save(versions, Path(out, "versions.pt"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
