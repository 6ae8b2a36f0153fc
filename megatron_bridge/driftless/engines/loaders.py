# SPDX-License-Identifier: Apache-2.0
"""The loaders of an engine's model and of its drafters (MTP layers, EAGLE heads), as one.

A drafter is a second module with a load_weights of its own. It takes some of the checkpoint's
tensors; a loader of its own checkpoint raises at names that it does not know. What it takes goes to
it together with the model's, in one plan and one commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from ..errors import InvalidArgumentError
from .bound import BoundTensors
from .tracing import LoadWeights, Trace, trace_loader

# What a loader raises at a name that it does not know.
_UNKNOWN = ("KeyError", "AttributeError", "ValueError")


class Loaders:
    def __init__(
        self,
        module: torch.nn.Module,
        load_weights: LoadWeights | None,
        drafters: Mapping[str, torch.nn.Module],
    ) -> None:
        self.model = load_weights or own_loader(module)
        self.drafters: dict[str, LoadWeights] = {}
        for name, drafter in drafters.items():
            load = own_loader(drafter)
            if load is None:
                raise InvalidArgumentError(f"drafter '{name}' has no load_weights")
            self.drafters[name] = load
        self.taken: dict[str, set[str]] = {name: set() for name in drafters}  # by drafter
        self.not_models: set[str] = set()  # tensors that only drafters know

    def trace(self, bound: BoundTensors, specs: list[Any]) -> Trace:
        assert self.model is not None
        trace = trace_loader(self.model, bound, specs)
        for name, load in self.drafters.items():
            other = trace_loader(load, bound, specs)
            for unknown in [key for key, kind in other.raised.items() if kind in _UNKNOWN]:
                if not other.copies.get(unknown):
                    other.problems.pop(unknown, None)
            self.taken[name] = {key for key, copies in other.copies.items() if copies}
            self.taken[name] |= other.problems.keys()
            trace.add(other)
        published = set().union(*self.taken.values())
        for name in published & trace.raised.keys():
            if trace.raised[name] in _UNKNOWN and name in trace.problems:
                self.not_models.add(name)
                trace.problems.pop(name)
        return trace

    @property
    def load(self) -> LoadWeights | None:
        """Gives every loader its tensors."""
        return self.give if any(self.taken.values()) else self.model

    def give(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        pairs = list(weights)
        assert self.model is not None
        if mine := [pair for pair in pairs if pair[0] not in self.not_models]:
            self.model(iter(mine))
        for name, load in self.drafters.items():
            if mine := [pair for pair in pairs if pair[0] in self.taken[name]]:
                load(iter(mine))


def own_loader(module: torch.nn.Module) -> LoadWeights | None:
    """The module's, and not what counts the calls of others (moves.py)."""
    load: Callable[..., Any] | None = getattr(module, "load_weights", None)
    return getattr(load, "uncounted", load)
