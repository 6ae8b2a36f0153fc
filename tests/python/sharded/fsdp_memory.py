# SPDX-License-Identifier: Apache-2.0
"""The memory that one FSDP2 rank needs for its publisher, under torchrun's variables:
test_sharded.py.

    fsdp_memory.py CONFIG OUT

Writes to OUT/rankN.json, in bytes: its shard in bf16, the bucket, and the growth of the process as
counted by the system: after opening the run, after versions, and at its maximum in between.
"""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import driftless
import driftless.torch

BUCKET = 4 << 20


def resident(key="VmRSS"):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{key}:"))


class Measured(driftless.torch.ShardedModel):
    """Records the largest whole tensor."""

    whole = 0

    def ready(self, shard):
        tensor = super().ready(shard)
        if tuple(tensor.shape) == tuple(shard.shape):
            self.whole = max(self.whole, tensor.nbytes)
        return tensor


def change(model, fraction, seed):
    """Changes weights in place, as an optimizer does."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            local = parameter.to_local().view(-1)
            count = int(local.numel() * fraction)
            if fraction == 1:
                local.mul_(1.5)
            elif count:
                local[torch.randint(local.numel(), (count,), generator=generator)] += 1.0


def main():
    config, out = sys.argv[1:]
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (4,))
    with torch.device("meta"):
        model = nn.Sequential(*(nn.Linear(2048, 4096, bias=number == 0) for number in range(8)))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    model.to_empty(device="cpu")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.to_local().normal_()

    source = Measured(model, bucket_bytes=BUCKET)
    job = driftless.Job(driftless.Config.load(config), "trainer", launched=False)
    group = driftless.torch.publisher_group()
    found = {"shard": 2 * sum(s.tensor.numel() for s in source.shards()), "bucket": BUCKET}
    before = resident()
    publisher = driftless.Publisher(job, source, group=group)
    found["opened"] = resident() - before
    for name, fraction in (("sparse", 0.02), ("dense", 1)):
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak
        change(model, fraction, seed=dist.get_rank())
        report = publisher.publish(source)
        found[name] = {"peak": resident("VmHWM") - before, "after": resident() - before,
                       "changed": report.changed_units / report.total_units}  # fmt: skip
    found["whole"] = source.whole
    publisher.declare_end()
    job.close()
    Path(out, f"rank{dist.get_rank()}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


main()
