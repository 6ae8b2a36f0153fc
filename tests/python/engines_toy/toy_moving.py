# SPDX-License-Identifier: Apache-2.0
"""Toy engines that move their tensors while they run, as real ones do on GPUs: expert rebalancing,
sleep, reloads. And one with a drafter."""

import torch

from toy_engine import DEVICE, EXPERTS, FFN, HIDDEN, ToyEngine, parameter

SLOTS = EXPERTS + 2  # the last ones hold replicas


class Balanced(ToyEngine):
    """Experts are in slots, some in two. As in SGLang, the loader reads the table of slots."""

    def __init__(self, rank=0, tp=1, odd=()):
        super().__init__(rank, tp, odd)
        self.physical_to_logical_map = torch.arange(SLOTS) % EXPERTS
        for layer in self.layers:
            layer.experts_up = parameter(SLOTS, HIDDEN, FFN // tp)
            layer.experts_down = parameter(SLOTS, HIDDEN, FFN // tp)

    def load_layer(self, layer, name, tensor):
        if not name.startswith("experts."):
            return super().load_layer(layer, name, tensor)
        expert = int(name.split(".")[1])
        for slot in (self.physical_to_logical_map == expert).nonzero().flatten().tolist():
            if name.endswith("up.weight"):
                layer.experts_up.data[slot].copy_(self.rows(tensor).t())
            else:
                layer.experts_down.data[slot].copy_(self.columns(tensor))

    def rebalance(self, slots):
        """Moves the weights as the engine does: in place, without a loader."""
        old = self.physical_to_logical_map.tolist()
        first = [old.index(expert) for expert in slots]
        for layer in self.layers:
            for each in (layer.experts_up, layer.experts_down):
                each.data.copy_(each.data[first].clone())
        self.physical_to_logical_map = torch.tensor(slots)


class Published(ToyEngine):
    """The run has a tensor for every parameter."""

    def __init__(self, rank=0, tp=1, odd=()):
        super().__init__(rank, tp, odd)
        del self.odd_scale


class Sleeping(Published):
    """Releases its memory, and allocates new memory when it wakes up. Level 1 keeps the values."""

    kept = None

    def sleep(self, level):
        weights = dict(self.named_parameters())
        self.kept = {name: each.data.cpu().clone() for name, each in weights.items()}
        self.level = level
        for each in weights.values():
            each.data = torch.empty(0, dtype=each.dtype)

    def wake_up(self):
        for name, each in self.named_parameters():
            each.data = self.kept[name].to(DEVICE, copy=True)
            if self.level == 2:
                each.data.view(torch.uint8).fill_(0x5A)
        self.kept = None


class Head(torch.nn.Module):
    """A drafter: MTP layers that the checkpoint has, and a parameter that it lacks."""

    def __init__(self, strict=False):
        super().__init__()
        self.strict = strict
        self.mix = parameter(2 * HIDDEN, HIDDEN)
        self.norm = parameter(HIDDEN, dtype=torch.float32)
        self.own = parameter(HIDDEN, HIDDEN)

    def load_weights(self, weights):
        for name, tensor in weights:
            if name == "mtp.first.weight":
                self.mix.data[:HIDDEN].copy_(tensor)
            elif name == "mtp.second.weight":
                self.mix.data[HIDDEN:].copy_(tensor)
            elif name == "mtp.norm.weight":
                self.norm.data.copy_(tensor)
            elif self.strict:
                raise KeyError(name)


def head_weights(generator):
    shapes = {"first": (HIDDEN, HIDDEN), "second": (HIDDEN, HIDDEN), "norm": (HIDDEN,)}
    return {
        f"mtp.{name}.weight": torch.randn(shape, generator=generator).to(torch.bfloat16)
        for name, shape in shapes.items()
    }
