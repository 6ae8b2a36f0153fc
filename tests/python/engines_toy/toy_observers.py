# SPDX-License-Identifier: Apache-2.0
"""Toy engines that record what happens while they load."""

import gc

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from toy_engine import ToyEngine


class Hoarding(ToyEngine):
    """Counts which tensors of earlier calls still have memory."""

    def __init__(self):
        super().__init__(odd=())
        self.given, self.alive, self.calls = [], 0, 0
        self.shadowed = set()  # names of tensors that are kept: they are loaded whole

    def load_weights(self, weights):
        # Views of GPU memory are made in advance, and have no memory of their own.
        alive = sum(not each.expired() for each in self.given)
        self.alive, self.calls = max(self.alive, alive), self.calls + 1
        self.given = []

        def noted():
            for name, tensor in weights:
                if tensor.device.type == "cpu" and name not in self.shadowed:
                    self.given.append(StorageWeakRef(tensor.untyped_storage()))
                yield name, tensor

        super().load_weights(noted())


class Reading(ToyEngine):
    """Reads its tensors before it copies them: by memory, by an operation, as a list."""

    def __init__(self):
        super().__init__(odd=())
        self.seen = {}

    def load_weights(self, weights):
        ways = (
            lambda bits: torch.from_numpy(bits.cpu().numpy().copy()),
            lambda bits: (bits + 0).cpu(),
            lambda bits: torch.tensor(bits.tolist(), dtype=bits.dtype),
        )

        def looked_at():
            for name, tensor in weights:
                if name.startswith("layers.") and tensor.device.type == "cpu":
                    look = ways[len(self.seen) % len(ways)]
                    self.seen[name] = look(tensor.view(torch.int16))
                yield name, tensor

        super().load_weights(looked_at())


class Collecting(ToyEngine):
    """Records whether Python's garbage collector is enabled while it loads; fails on request."""

    def __init__(self):
        super().__init__(odd=())
        self.collects, self.fails = [], False

    def load_weights(self, weights):
        self.collects.append(gc.isenabled())
        if self.fails:
            raise RuntimeError("injected")
        super().load_weights(weights)
