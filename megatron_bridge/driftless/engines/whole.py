# SPDX-License-Identifier: Apache-2.0
"""Loads whole tensors through a module's loader, even if it computes, quantizes, or replaces
parameters by other tensors. Its writes can be undone."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Container
from typing import Any

import torch

from ..errors import UnsupportedError
from .bound import Binding, BoundTensors, SavedStorage, Storage
from .tracing import LoadWeights
from .watching import Watching, written


class WholeLoad(Watching):
    """Used once: load(), then undo() if load() raised or the commit is taken back. Memory: a copy
    of every parameter that the loader writes."""

    def __init__(self, bound: BoundTensors) -> None:
        super().__init__(bound)
        self.before: dict[int, SavedStorage] = {}

    def load(self, load_weights: LoadWeights, name: str, tensor: torch.Tensor) -> None:
        """Parameters keep their memory: if the loader replaces a parameter, the new values are
        copied into the old memory."""
        self.run(lambda: load_weights(iter([(name, tensor)])))

    def run(self, work: Callable[[], Any]) -> None:
        try:
            with torch.no_grad():
                with self.watching():
                    work()
                for binding in list(self.bound.rebound()):
                    self.complete(binding)
        except BaseException:
            with contextlib.suppress(Exception):  # the caller's undo() reports it
                self.undo()
            raise

    def ended(self) -> None:
        """Attributes keep their memory, too: a CUDA graph may hold its address."""
        for each in self.bound.rebound_attributes():
            new = each.current()
            storage = self.bound.find(each.tensor)
            if storage is None or not each.fits(new):
                raise UnsupportedError(
                    f"the loader puts something of another shape or type in place of '{each.name}'"
                )
            self.save(storage)
            each.tensor.copy_(new)

    def save(self, storage: Storage) -> None:
        if storage.key not in self.before:
            self.before[storage.key] = storage.save()

    def complete(self, binding: Binding) -> None:
        current = binding.current()
        storage = self.bound.find(binding.data)
        same = (
            current is not None
            and current.shape == binding.data.shape
            and current.dtype == binding.data.dtype
        )
        if storage is None or current is None or not same:
            raise UnsupportedError(
                f"the loader puts a tensor of another shape or type in place of '{binding.name}'"
            )
        self.save(storage)
        values = current.detach()
        binding.restore()
        binding.data.copy_(values)

    def undo(self) -> None:
        self.bound.restore()
        with torch.no_grad():
            for saved in self.before.values():
                saved.undo()
        self.before.clear()

    def changed(self, but: Container[int]) -> str | None:
        """The name of a parameter whose bits changed, or None; ignores the storages in `but`."""
        changed = (s.storage.name for key, s in self.before.items() if key not in but and s.changed())
        return next(changed, None)

    def see(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        for target in written(func, args, kwargs):
            storage = self.bound.find(target)
            if storage is not None:
                self.save(storage)
        return func(*args, **kwargs)
