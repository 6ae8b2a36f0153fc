# SPDX-License-Identifier: Apache-2.0
"""A made-up run in memory, for measurements: torch tensors on the host, and steps that change some."""

import torch

import driftless

NAMES = {torch.bfloat16: "BF16", torch.float16: "F16"}


class Source:
    """A publisher's source: the current tensors."""

    def __init__(self, weights):
        self.weights = weights

    def tensors(self):
        return [
            driftless.TensorSpec(name, NAMES[tensor.dtype], tensor.shape)
            for name, tensor in self.weights.items()
        ]

    def visit(self):
        for number, tensor in enumerate(self.weights.values()):
            yield [(number, tensor)]


def step(weights, percent, generator):
    """Changes `percent` of every tensor; returns the changes as (name, shape, positions, new, old). The
    positions are drawn on the generator's device; for many, a GPU is faster."""
    changes = []
    for name, tensor in weights.items():
        flat = tensor.view(-1)
        count = max(1, int(len(flat) * percent / 100))
        drawn = torch.randint(len(flat), (count,), generator=generator, device=generator.device)
        at = torch.unique(drawn).cpu()
        old = flat[at].clone()
        flat[at] = (old.float() * 1.01 + 1e-3).to(tensor.dtype)
        changes.append((name, tuple(tensor.shape), at, flat[at].clone(), old))
    return changes
