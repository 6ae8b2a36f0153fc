# SPDX-License-Identifier: Apache-2.0
"""A rank that leaves out one publish(), under torchrun's variables: test_sharded.py.

    left_out.py CONFIG OUT RANK free|barrier

Each rank's shard holds the number of its step, which all pass to publish(). RANK leaves out step 2.
With "barrier" the ranks meet between steps, as gradients make them. Writes the result of each call
to OUT/rankN.json.
"""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist

import driftless
import driftless.torch


def main():
    path, out, leaves, mode = sys.argv[1:]
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    job = driftless.Job(driftless.Config.load(path), "trainer", launched=False)
    weight = torch.zeros(4, 8)
    source = driftless.ShardedSource([("w", weight, (4 * size, 8), (4 * rank, 0))])
    publisher = driftless.Publisher(job, source, group=driftless.torch.publisher_group())
    found = {}
    for step in range(1, 6):
        weight.fill_(float(step))
        if mode == "barrier":
            dist.barrier()
        if step == 2 and rank == int(leaves):
            continue  # as after an exception that its training loop caught
        try:
            found[step] = f"version {publisher.publish(source, step=step).version}"
        except driftless.Error as failure:
            found[step] = str(failure)
    dist.barrier()
    publisher.declare_end()
    job.close()
    Path(out, f"rank{rank}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


main()
