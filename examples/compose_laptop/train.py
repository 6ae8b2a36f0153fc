# SPDX-License-Identifier: Apache-2.0
"""Trains a small model on the CPU, and publishes a version after every step.

    train.py model              makes the checkpoint that both sides start from
    train.py train STEPS        trains it
"""

import sys
import time

import torch
from transformers import AutoModelForCausalLM, Qwen3Config

import driftless
import driftless.torch

MODEL = "shared/model"


def make_model():
    sizes = {"vocab_size": 1000, "hidden_size": 256, "intermediate_size": 512, "head_dim": 64}
    layers = {"num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2}
    model = AutoModelForCausalLM.from_config(Qwen3Config(**sizes, **layers))
    model.to(torch.bfloat16).save_pretrained(MODEL)


def train(steps):
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    with driftless.Job(driftless.Config.load("driftless.yaml"), "trainer") as job:
        source = driftless.torch.ShardedModel(model)  # published in bf16
        publisher = driftless.Publisher(job, source, checkpoint=MODEL)
        for _ in range(steps):
            # Replace this by your step: completions, rewards, a loss. It trains on noise.
            tokens = torch.randint(model.config.vocab_size, (4, 32))
            optimizer.zero_grad()
            model(input_ids=tokens, labels=tokens).loss.backward()
            optimizer.step()
            print(publisher.publish(source), flush=True)
            time.sleep(0.5)  # slow enough to watch
        publisher.declare_end()


if __name__ == "__main__":
    make_model() if sys.argv[1] == "model" else train(int(sys.argv[2]))
