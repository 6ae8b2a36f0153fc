# SPDX-License-Identifier: Apache-2.0
"""Four ranks that hold tensors in odd ways, under torchrun's variables: test_sharded.py.

    holders.py OUT

Opens a run for each case, on a road of its own in OUT, and writes to OUT/rankN.json each case's
result on this rank.
"""

import json
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import save_file

import driftless
import driftless.torch
from driftless import ShardedSource
from driftless.torch import publisher_group, shard_of


def config(out, name):
    text = f"road: {{ kind: shared_fs, shared_fs: {{ dir: {out}/{name} }}, layout: frames }}\n"
    return driftless.Config.parse(text + "deadlines: { publish: 20s }\n")


def weight(seed, rows=6):
    made = torch.randn(rows, 4, generator=torch.Generator().manual_seed(seed))
    return made.to(torch.bfloat16)


def held(name, tensor, owner=True):
    return shard_of(name, tensor)._replace(owner=owner)


def result_of(opened):
    try:
        return opened()
    except driftless.Error as error:
        return str(error)


def publish(job, source, change, **options):
    """Publishes version 1 with the tensors changed in place; returns the result of opening."""
    publisher = driftless.Publisher(job, source, group=publisher_group(), **options)
    for tensor in change:
        tensor[0, 0] += 1
    report = publisher.publish(source)
    publisher.declare_end()
    return {"version": report.version, "notes": publisher.notes}


def cases(out, rank):
    def job(name):
        return driftless.Job(config(out, name), "trainer", launched=False)

    everywhere, own = weight(100), weight(rank)
    with job("unowned") as made:  # held by rank 2, which leaves it to other ranks; none has it
        shards = [held("w", everywhere)] + [held("lost.weight", own, False)] * (rank == 2)
        yield "unowned", result_of(lambda: publish(made, ShardedSource(shards), []))
    with job("differ") as made:
        shards = [held("experts.weight", own)]  # other values on each rank, under one name
        yield "differ", result_of(lambda: publish(made, ShardedSource(shards), []))
    with job("part") as made:  # equal at open, different on each rank after a step
        mine = torch.zeros(6, 4, dtype=torch.bfloat16)
        parts = ShardedSource([held("lora_b", mine), held(f"w.{rank}", own)])
        yield "part", result_of(lambda: publish(made, parts, [mine] if rank == 1 else []))
    with job("empty_leader") as made:
        mine, zero = weight(10 + rank), torch.empty(0, 4, dtype=torch.bfloat16)
        shards = [held(f"w.{rank}", mine), held("zero", zero)] if rank else []
        yield "empty_leader", publish(made, ShardedSource(shards), [mine] if rank else [])
    with job("replicas") as made:
        shards = [held("everywhere", everywhere), held(f"w.{rank}", own)]
        yield "replicas", publish(made, ShardedSource(shards), [everywhere, own])
    base = {"checkpoint": f"{out}/checkpoint"}
    mine = weight(10 + rank)
    if rank == 0:
        stored = {f"w.{each}": weight(10 + each) for each in range(4)}
        stored |= {"tower.weight": weight(50), "mtp.weight": weight(51)}
        Path(out, "checkpoint").mkdir()
        save_file(stored, f"{out}/checkpoint/model.safetensors")
    dist.barrier()
    with job("complete") as made:
        shards = [held(f"w.{rank}", mine)]
        yield (
            "complete",
            result_of(lambda: publish(made, ShardedSource(shards), [], complete=True, **base)),
        )
    with job("base") as made:
        yield "base", publish(made, ShardedSource([held(f"w.{rank}", mine)]), [mine], **base)
    yield "groups", groups(job, rank)


def groups(job, rank):
    """Two publishers of one group, alternately; then one of a new process group. Rank 1 is late for
    each version: its earlier messages must not count for it. Every weight of version N is N."""
    weights = [torch.zeros(6, 4, dtype=torch.bfloat16) for _ in range(2)]
    sources = [ShardedSource([held(f"w.{rank}", each)]) for each in weights]
    both = publisher_group()
    jobs = [job("first"), job("second")]
    publishers = [
        driftless.Publisher(*each, group=both) for each in zip(jobs, sources, strict=True)
    ]

    def step(number):
        time.sleep(0.3 * (rank == 1))
        weights[number] += 1
        publishers[number].publish(sources[number])

    for number in (0, 1, 0, 1, 1):
        step(number)
    publishers[0].declare_end()
    jobs[0].close()
    dist.barrier()
    dist.destroy_process_group()
    dist.init_process_group("gloo")
    jobs[0] = job("third")
    weights[0].zero_()
    time.sleep(0.3 * (rank == 1))
    publishers[0] = driftless.Publisher(jobs[0], sources[0], group=publisher_group())
    step(0)
    for publisher, each in zip(publishers, jobs, strict=True):
        publisher.declare_end()
        each.close()
    return "done"


def main():
    (out,) = sys.argv[1:]
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    found = dict(cases(out, rank))
    Path(out, f"rank{rank}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


main()
