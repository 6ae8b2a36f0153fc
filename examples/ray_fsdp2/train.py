# SPDX-License-Identifier: Apache-2.0
"""FSDP2 in Ray actors. Rollouts in other actors follow the run, and generate all the while.

    train.py MODEL STEPS [KEY=VALUE ...]      settings over driftless.yaml
"""

import os
import socket
import sys

import ray
import torch
from torch.distributed import destroy_process_group, init_process_group
from torch.distributed.fsdp import fully_shard

import driftless
import driftless.torch

TRAINERS, ROLLOUTS = int(os.environ.get("TRAINERS", 4)), int(os.environ.get("ROLLOUTS", 4))
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"  # an actor sees only its own GPU


def load(path, dtype):
    from transformers import AutoModelForCausalLM  # not at the top: Ray cannot pickle it

    return AutoModelForCausalLM.from_pretrained(path, dtype=dtype).to(DEVICE)


@ray.remote
class Trainer:
    def address(self):
        """The rendezvous address: a free port on this actor's host."""
        with socket.socket() as found:
            found.bind(("", 0))
            return f"{ray.util.get_node_ip_address()}:{found.getsockname()[1]}"

    def train(self, rank, address, path, steps, settings):
        backend = "nccl" if DEVICE == "cuda" else "gloo"
        init_process_group(backend, f"tcp://{address}", rank=rank, world_size=TRAINERS)
        model = load(path, torch.float32)
        for layer in model.model.layers:
            fully_shard(layer)
        fully_shard(model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)

        place = driftless.launch(rank=rank, world=TRAINERS)
        config = driftless.Config.load("driftless.yaml", settings)
        job = driftless.Job(config, "trainer", launched=place)
        source = driftless.torch.ShardedModel(model)  # published in bf16
        group = driftless.torch.publisher_group()
        publisher = driftless.Publisher(job, source, group=group, checkpoint=path)
        source.publish_after(optimizer, publisher, print if rank == 0 else lambda report: None)
        for _ in range(steps):
            # Replace this by your step: completions, rewards, a loss. It trains on noise.
            tokens = torch.randint(model.config.vocab_size, (4, 32), device=DEVICE)
            optimizer.zero_grad()
            model(input_ids=tokens, labels=tokens).loss.backward()
            optimizer.step()
        publisher.declare_end()
        last = publisher.version
        job.close()
        destroy_process_group()
        return last


@ray.remote
class Rollout:
    def follow(self, rank, path, settings):
        """Follows until the run ends. Returns the version that the model holds, and its tokens."""
        from driftless.engines import transformers

        engine = transformers.Engine(load(path, torch.bfloat16))
        engine.start([[1, 2, 3], [5, 8]], 32)
        named = [*settings, f"receiver.id=rollout-{rank}"]
        config = driftless.Config.load("driftless.yaml", named)
        with driftless.Job(config, "rollout", launched=False) as job:
            version = transformers.follow(engine, job, path)
        engine.stop()
        return version, engine.steps


def main():
    path, steps, settings = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
    ray.init()
    share = {"num_gpus": 1} if ray.cluster_resources().get("GPU") else {"num_cpus": 0}
    trainers = [Trainer.options(**share).remote() for _ in range(TRAINERS)]
    rollouts = [Rollout.options(**share).remote() for _ in range(ROLLOUTS)]
    address = ray.get(trainers[0].address.remote())
    training = [
        each.train.remote(rank, address, path, steps, settings) for rank, each in enumerate(trainers)
    ]
    following = [each.follow.remote(rank, path, settings) for rank, each in enumerate(rollouts)]
    (last, *_) = ray.get(training)
    for rank, (version, tokens) in enumerate(ray.get(following)):
        print(f"rollout {rank} at version {version} of {last}, {tokens} tokens")
        assert version == last


if __name__ == "__main__":
    main()
