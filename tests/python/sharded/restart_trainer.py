# SPDX-License-Identifier: Apache-2.0
"""A rank that torchrun starts, and restarts after a failure: test_sharded_restart.py.

    restart_trainer.py CONFIG OUT PHASE VICTIM

In the first attempt rank VICTIM kills itself in PHASE of a publish; torchrun restarts all ranks,
which continue to the end. Before each publish() a rank writes its weights to
OUT/rankR_vN_attemptA.npy, and renames the file to `_done` after version N is published.
"""

import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

import driftless
import driftless.torch
from driftless.torch_group import PublisherGroup

VERSIONS = 3


def die():
    os.kill(os.getpid(), signal.SIGKILL)


class Dying:
    """Kills the process in a phase of publishing."""

    def __init__(self, phase):
        self.phase, self.now, self.messages = phase, "", 0
        self.write = PublisherGroup._write
        PublisherGroup._write = lambda group, *message: self.intercept(group, *message)

    def at(self, phase):
        self.now, self.messages = phase, 0

    def intercept(self, group, *message):
        self.messages += 1
        # The messages of a publish. Each rank sends its offer, that it began, and its parts. The
        # leader sends the plan, that all continue, and, after the seal, the result.
        wanted = {("open", "open"): 2, ("gather", "publish"): 1, ("seal", "publish"): 3}
        if wanted.get((self.phase, self.now)) == self.messages:
            die()
        self.write(group, *message)

    def before_visible(self, directory):
        if self.phase == "part" and self.now == "publish":
            die()


def join():
    """Joins through the store of torchrun's agent, which outlives attempts, under a prefix for this
    attempt. Without the prefix, newer releases of torch find the dead attempt's addresses there;
    older ones add it themselves."""
    attempt, rank = (int(os.environ[name]) for name in ("TORCHELASTIC_RESTART_COUNT", "RANK"))
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(host, port, is_master=False)
    store = dist.PrefixStore(f"/worker/attempt_{attempt}", store)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    return rank, attempt


def main():
    config, out, phase, victim = sys.argv[1:]
    rank, attempt = join()
    dying = Dying(phase if attempt == 0 and rank == int(victim) else "")
    weight = torch.zeros(32, 16)
    source = driftless.ShardedSource([("w", weight, (64, 16), (32 * rank, 0))])
    read = driftless.Config.load(config)
    by_hub = read.settings()["hub.group"] == "true"
    job = driftless.Job(read, "trainer", launched=driftless.launch() if by_hub else False)
    group = None if by_hub else driftless.torch.publisher_group()
    if attempt == 1 and rank == 1:
        time.sleep(1.5)  # messages of the dead rank 1 could be taken for new ones
    dying.at("open")
    publisher = driftless.Publisher(job, source, group=group, before_visible=dying.before_visible)
    random = torch.Generator().manual_seed(100 * attempt + rank)
    while publisher.version < VERSIONS:
        weight[torch.randint(32, (3,), generator=random)] += 1 + attempt
        if attempt == 1 and rank == 1:
            time.sleep(0.3)
        version = publisher.version + 1
        file = Path(out, f"rank{rank}_v{version}_attempt{attempt}.npy")
        np.save(file, weight.numpy())
        dying.at("publish" if version == 2 else "")
        assert publisher.publish(source).version == version
        file.rename(file.with_stem(f"{file.stem}_done"))
        if dying.phase == "after" and version == 2:
            die()
    publisher.declare_end()
    job.close()
    dist.barrier()
    dist.destroy_process_group()


main()
