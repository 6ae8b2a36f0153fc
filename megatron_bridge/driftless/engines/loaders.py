# SPDX-License-Identifier: Apache-2.0
"""Combines the loaders of an engine's model and of its drafters (MTP layers, EAGLE heads).

A drafter is a second module with its own load_weights. The checkpoint tensors that it takes are
planned and committed together with the model's. A drafter that was loaded from another checkpoint
holds other values, or its loader raises: it does not follow the run, and is left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from ..errors import InvalidArgumentError
from .bound import BoundTensors
from .load_layout import LoadLayout, StandIns
from .tracing import LoadWeights, Trace, trace_loader


class Loaders:
    def __init__(
        self,
        module: torch.nn.Module,
        load_weights: LoadWeights | None,
        drafters: Mapping[str, torch.nn.Module],
        layout: LoadLayout,
    ) -> None:
        self.stand_ins: StandIns = {}  # of the loader that is running
        load = load_weights or module_loader(module)
        self.model = load and layout.wrap(load, self.stand_ins)
        self.drafters: dict[str, LoadWeights] = {}
        for name, drafter in drafters.items():
            load = module_loader(drafter)
            if load is None:
                raise InvalidArgumentError(f"drafter '{name}' has no load_weights")
            self.drafters[name] = layout.wrap(load, self.stand_ins)
        self.taken: dict[str, set[str]] = {}  # drafter -> its tensors
        self.not_models: set[str] = set()  # tensors that only drafters take

    def trace(
        self, bound: BoundTensors, specs: list[Any], base: Callable[[str], torch.Tensor]
    ) -> Trace:
        """The first call needs modules that hold `base`. It records what each drafter takes, for
        later calls."""
        assert self.model is not None
        trace = trace_loader(self.model, bound, specs)
        unknown = set(trace.raised)
        for name, load in self.drafters.items():
            known = self.taken.get(name)
            given = [spec for spec in specs if known is None or spec.name in known]
            other = trace_loader(load, bound, given)
            if known is None:
                self.taken[name] = _taken(other, bound, base)
            trace.add(other, only=self.taken[name])
        # Tensors that the model's loader rejects and a drafter's takes.
        self.not_models = unknown & set().union(*self.taken.values())
        for tensor in self.not_models:
            trace.problems.pop(tensor, None)
        return trace

    @property
    def load(self) -> LoadWeights | None:
        """A load_weights that gives every loader its tensors."""
        return self.give if any(self.taken.values()) else self.model

    def give(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        pairs = list(weights)
        assert self.model is not None
        if mine := [pair for pair in pairs if pair[0] not in self.not_models]:
            self.model(iter(mine))
        for name, load in self.drafters.items():
            if mine := [pair for pair in pairs if pair[0] in self.taken[name]]:
                load(iter(mine))


def _taken(
    trace: Trace, bound: BoundTensors, base: Callable[[str], torch.Tensor]
) -> set[str]:
    """The checkpoint tensors that a drafter takes."""
    taken = {name for name in trace.problems if name not in trace.raised}
    for name, copies in trace.copies.items():
        if copies and name not in trace.raised:
            tensor = base(name)
            if all(each.holds(bound.storages[each.storage], tensor) for each in copies):
                taken.add(name)
    return taken


def module_loader(module: torch.nn.Module) -> LoadWeights | None:
    """The module's load_weights, without the wrapper that counts foreign calls (moves.py)."""
    load: Callable[..., Any] | None = getattr(module, "load_weights", None)
    return getattr(load, "uncounted", load)
