# SPDX-License-Identifier: Apache-2.0
"""The loaders of an engine's model and of its drafters (MTP layers, EAGLE heads), as one.

A drafter is a second module with a load_weights of its own. What it takes of the checkpoint goes to
it together with the model's, in one plan and one commit. A drafter that was loaded from another
checkpoint holds other values there, or its loader raises: it does not follow, and is left alone.
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
        self.stand_ins: StandIns = {}  # of the loader that runs
        load = load_weights or own_loader(module)
        self.model = load and layout.wrap(load, self.stand_ins)
        self.drafters: dict[str, LoadWeights] = {}
        for name, drafter in drafters.items():
            load = own_loader(drafter)
            if load is None:
                raise InvalidArgumentError(f"drafter '{name}' has no load_weights")
            self.drafters[name] = layout.wrap(load, self.stand_ins)
        self.taken: dict[str, set[str]] = {}  # tensors, by drafter
        self.not_models: set[str] = set()  # tensors that only drafters know

    def trace(
        self, bound: BoundTensors, specs: list[Any], base: Callable[[str], torch.Tensor]
    ) -> Trace:
        """The first time the modules hold `base`. Later what a drafter takes is known."""
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
        # The model's loader does not know them, and a drafter's does.
        self.not_models = unknown & set().union(*self.taken.values())
        for tensor in self.not_models:
            trace.problems.pop(tensor, None)
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


def _taken(
    trace: Trace, bound: BoundTensors, base: Callable[[str], torch.Tensor]
) -> set[str]:
    """The tensors that a drafter has from this checkpoint."""
    taken = {name for name in trace.problems if name not in trace.raised}
    for name, copies in trace.copies.items():
        if copies and name not in trace.raised:
            tensor = base(name)
            if all(each.holds(bound.storages[each.storage], tensor) for each in copies):
                taken.add(name)
    return taken


def own_loader(module: torch.nn.Module) -> LoadWeights | None:
    """The module's, and not what counts the calls of others (moves.py)."""
    load: Callable[..., Any] | None = getattr(module, "load_weights", None)
    return getattr(load, "uncounted", load)
