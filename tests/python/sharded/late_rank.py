# SPDX-License-Identifier: Apache-2.0
"""A rank that is too late for a version, under torchrun's variables: test_sharded.py.

    late_rank.py CONFIG OUT LATE

The first attempt to open the publisher fails. Later, rank LATE sleeps past the deadline before the
second version. Writes to OUT/rankN.json the result and the duration of each version.
"""

import json
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

import driftless
import driftless.torch


def main():
    path, out, late = sys.argv[1:]
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    config = driftless.Config.load(path)
    job = driftless.Job(config, "trainer", launched=False)
    weight = torch.zeros(16, 40, dtype=torch.bfloat16)
    source = driftless.ShardedSource([("w", weight, (16 * size, 40), (16 * rank, 0))])
    group = driftless.torch.publisher_group()
    try:  # fails on one rank alone, while the others wait for it
        driftless.Publisher(job, source, group=group, snapshot="some" if rank == 1 else "none")
        raise AssertionError("rank 1 did not fail")
    except driftless.Error:
        dist.barrier()
    publisher = driftless.Publisher(job, source, group=group, snapshot="none")
    found = []
    for step in range(4):
        new = weight.clone()
        new[step] += 1
        publisher.capture([(0, new)])
        weight.copy_(new)
        if step == 1 and rank == int(late):
            time.sleep(config.publish_s + 2)
        begin = time.monotonic()
        try:
            said = f"version {publisher.publish(source).version}"
        except driftless.Error as failure:
            said = str(failure)
        found.append({"said": said, "s": time.monotonic() - begin})
        dist.barrier()  # as the gradients of a step do
    publisher.declare_end()
    job.close()
    Path(out, f"rank{rank}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


main()
