# SPDX-License-Identifier: Apache-2.0
"""A dispatch mode that tracks which values come from which checkpoint tensor.

torch calls a TorchDispatchMode for every operation below autograd, whatever API requested it, so it
sees every write of a loader; threads.py extends it to the loader's threads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from .bound import BoundTensors, storage_key
from .threads import everywhere

COPY = torch.ops.aten.copy_.default
TO_COPY = torch.ops.aten._to_copy.default
CAT = torch.ops.aten.cat.default
FILLS = {torch.ops.aten.fill_.Scalar, torch.ops.aten.zero_.default}


@cache
def _written_arguments(func: Any) -> tuple[tuple[int, str], ...]:
    return tuple(
        (number, argument.name)
        for number, argument in enumerate(func._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )


def written(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """The tensors that the operation writes."""
    found: list[torch.Tensor] = []
    for number, name in _written_arguments(func):
        found += tensors_in(args[number] if number < len(args) else kwargs.get(name))
    return found


@cache
def only_views(func: Any) -> bool:
    """Whether the operation writes nothing and declares that its result aliases its first argument.
    Such an operation needs no tracking. Some of them (reshape) copy nevertheless."""
    schema = func._schema
    if not schema.returns or not schema.arguments or _written_arguments(func):
        return False
    first = schema.arguments[0].alias_info
    return first is not None and all(
        each.alias_info is not None and each.alias_info.before_set == first.before_set
        for each in schema.returns
    )


def tensors_in(*values: Any) -> list[torch.Tensor]:
    return [each for each in tree_flatten(values)[0] if isinstance(each, torch.Tensor)]


def op_name(func: Any) -> str:
    return func._schema.name.removeprefix("aten::")


@dataclass(frozen=True)
class Origin:
    """Where the values of a storage come from: a tensor, unchanged or converted."""

    name: str
    dtype: torch.dtype
    converted: bool = False


# (operation, arguments, keyword arguments) -> result
See = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]


class _Mode:
    def __init__(self, see: See) -> None:
        super().__init__()
        self.see_operation = see

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Called by torch. True (torch's default) makes torch wrap every call of the mode, to keep
        it from being compiled. No loader is compiled, so False saves the time."""
        return False

    def take(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        return self.see_operation(func, args, kwargs or {})


class DispatchMode(_Mode, TorchDispatchMode):
    __torch_dispatch__ = _Mode.take


class FunctionMode(_Mode, TorchFunctionMode):
    __torch_function__ = _Mode.take


class Watching:
    """Tracks the origin of storages. Subclasses decide what an operation does."""

    def __init__(self, bound: BoundTensors) -> None:
        self.bound = bound
        self.turn = threading.RLock()  # handles a loader's threads one at a time
        self.thread = threading.get_ident()  # the loader's main thread
        self.current: str | None = None  # the tensor that the loader took last
        self.origins: dict[int, Origin] = {}
        self.derived: dict[int, tuple[set[str], str]] = {}  # storage -> (names, by what)
        self.filled: dict[int, set[str]] = {}  # storage of the module -> names copied there
        # Weak references: a storage's key is not reused as long as one exists.
        self.kept: dict[int, StorageWeakRef] = {}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """While the context is open, see() gets every operation of this thread and of the threads
        that it starts."""
        self.thread = threading.get_ident()
        with self.bound.with_attributes():
            try:
                with everywhere(self.modes):
                    yield
                self.ended()
            finally:
                for each in self.bound.rebound_attributes():
                    each.restore()

    def ended(self) -> None:
        """Called when the loader has returned; replaced attributes are still as the loader left
        them."""

    @contextmanager
    def modes(self) -> Iterator[None]:
        """The modes of one thread. Every thread but the loader's main one waits for its GPU work at
        the end, because it has another stream."""
        with torch.no_grad(), DispatchMode(self.in_turn(self.see)):
            yield
        if threading.get_ident() != self.thread and torch.cuda.is_initialized():
            torch.cuda.current_stream().synchronize()

    def in_turn(self, see: See) -> See:
        def seen(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            with self.turn:
                return see(func, args, kwargs)

        return seen

    def see(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Handles one operation of the loader, and returns its result."""
        raise NotImplementedError

    def offer(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """Marks the tensor that the loader takes next."""
        self.current = name
        self.origins[storage_key(tensor)] = Origin(name, tensor.dtype)
        self.keep(tensor)
        return tensor

    def keep(self, tensor: torch.Tensor) -> None:
        key = storage_key(tensor)
        if key not in self.kept:
            self.kept[key] = StorageWeakRef(tensor.untyped_storage())

    def fresh(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        """The tensors that belong neither to the checkpoint nor to the module."""
        return [
            each
            for each in tensors
            if storage_key(each) not in self.origins and self.bound.find(each) is None
        ]

    def taint(self, tensors: list[torch.Tensor], names: set[str], by: str) -> None:
        for each in self.fresh(tensors):
            key = storage_key(each)
            known, how = self.derived.get(key, (set(), by))
            self.derived[key] = (known | names, how)
            self.keep(each)

    def names_of(self, tensors: Iterable[torch.Tensor]) -> set[str]:
        """The checkpoint tensors from which these values come, unchanged or computed."""
        names: set[str] = set()
        for each in tensors:
            key = storage_key(each)
            if key in self.origins:
                names.add(self.origins[key].name)
            elif key in self.derived:
                names |= self.derived[key][0]
            elif key in self.filled:
                names |= self.filled[key]
        return names

    def note_filled(self, storage: int, name: str) -> None:
        self.filled.setdefault(storage, set()).add(name)
