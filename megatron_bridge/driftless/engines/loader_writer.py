"""Writes through a module's own loader what maps cannot: masked overwrites and whole tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .bound import BoundTensors
from .planning import Plan
from .tracing import LoadWeights


class LoaderWriter:
    """Called by the native target; one thread at a time."""

    def __init__(
        self,
        bound: BoundTensors,
        load_weights: LoadWeights | None,
        layout: Any,
        base: Callable[[str], torch.Tensor],
        chunk_bytes: int,
    ) -> None:
        self._bound, self._load = bound, load_weights
        self._layout, self._base, self._chunk_bytes = layout, base, chunk_bytes
        self._names: list[str] = []

    def prove(self, plan: Plan) -> dict[str, str]:
        """Which of the plan's tensors cannot be written by the loader, and why."""
        return {**plan.masked, **plan.whole}

    def names(self) -> list[str]:
        return self._names

    def check(self) -> None:
        self._bound.check()

    def stage(self, news: Any) -> None: ...

    def commit(self) -> None: ...

    def undo(self) -> None: ...

    def drop(self) -> None: ...
