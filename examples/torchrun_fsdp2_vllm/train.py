# SPDX-License-Identifier: Apache-2.0
"""FSDP2 trains a transformers model, and publishes a version after every optimizer step.

    torchrun ... train.py MODEL STEPS [KEY=VALUE ...]     settings over driftless.yaml
"""

import os
import sys

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from transformers import AutoModelForCausalLM

import driftless
import driftless.torch

path, steps, settings = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
device = "cuda" if torch.cuda.is_available() else "cpu"
if device == "cuda":
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl" if device == "cuda" else "gloo")

model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).to(device)
for layer in model.model.layers:
    fully_shard(layer)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)

config = driftless.Config.load("driftless.yaml", settings)
job = driftless.Job(config, "trainer", launched=False)
source = driftless.torch.ShardedModel(model)  # published in bf16
group = driftless.torch.publisher_group()
publisher = driftless.Publisher(job, source, group=group, checkpoint=path)
source.publish_after(optimizer, publisher, print if dist.get_rank() == 0 else lambda report: None)

for _ in range(steps):
    # Replace this by your step: completions of the engine, rewards, a loss. It trains on noise.
    tokens = torch.randint(model.config.vocab_size, (4, 32), device=device)
    optimizer.zero_grad()
    model(input_ids=tokens, labels=tokens).loss.backward()
    optimizer.step()

publisher.declare_end()  # the agent ends when the engine holds the last version
job.close()
dist.destroy_process_group()
