# SPDX-License-Identifier: Apache-2.0
"""FSDP2 trains a transformers model, and publishes a version after every step. If its pod is
restarted, it continues from its last checkpoint, and receivers continue to follow the same run.

    torchrun ... train.py MODEL CHECKPOINT STEPS [KEY=VALUE ...]     settings over driftless.yaml
"""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from transformers import AutoModelForCausalLM

import driftless
import driftless.torch

JOB = Path(__file__).parent
SAVE_EVERY = 20


class Training:
    """The training state, which checkpoints save."""

    def __init__(self, path):
        device = "cuda" if torch.cuda.is_available() else "cpu"
        self.model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).to(device)
        for layer in self.model.model.layers:
            fully_shard(layer)
        fully_shard(self.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5)
        self.done = 0  # steps

    def state_dict(self):
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer, "done": self.done}

    def load_state_dict(self, state):
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"],
                       optim_state_dict=state["optimizer"])  # fmt: skip
        self.done = state["done"]

    def step(self):
        # Replace this by your step: completions, rewards, a loss. It trains on noise.
        tokens = torch.randint(self.model.config.vocab_size, (4, 32), device=self.model.device)
        self.optimizer.zero_grad()
        self.model(input_ids=tokens, labels=tokens).loss.backward()
        self.optimizer.step()
        self.done += 1


def main():
    path, checkpoint, steps, settings = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4:]
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    training = Training(path)

    config = driftless.Config.load(str(JOB / "driftless.yaml"), settings)
    job = driftless.Job(config, "trainer", launched=False)
    source = driftless.torch.ShardedModel(training.model)  # published in bf16
    group = driftless.torch.publisher_group()
    publisher = driftless.Publisher(job, source, group=group, checkpoint=path)
    if Path(checkpoint, ".metadata").exists():  # load after the publisher has read the base
        dcp.load({"training": training}, checkpoint_id=checkpoint)
    while training.done < steps:
        training.step()
        report = publisher.publish(source)
        if dist.get_rank() == 0:
            print(report, flush=True)
        if training.done % SAVE_EVERY == 0 or training.done == steps:
            dcp.save({"training": training}, checkpoint_id=checkpoint)

    publisher.declare_end()
    job.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
