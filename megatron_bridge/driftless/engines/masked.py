# SPDX-License-Identifier: Apache-2.0
"""Masked overwrite: the loader gets full-shape tensors in which unchanged elements have the bits of
a sentinel, and its copies into the module write only the other elements.

The sentinel of each tensor is a bit pattern that none of its new values has, so every NaN, integer
and 8-bit value arrives unchanged. Only copies of such tensors reach the parameters being loaded;
fills are skipped, and any other write is refused. undo() takes the writes back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from .. import _native
from ..errors import InvalidArgumentError, MismatchError, UnsupportedError
from ..torch_dtypes import dtype_name
from .bound import BoundTensors, Storage, View, bits, storage_key
from .tracing import LoadWeights
from .watching import (
    COPY,
    FILLS,
    TO_COPY,
    FunctionMode,
    Watching,
    op_name,
    only_views,
    tensors_in,
    written,
)


@dataclass
class MaskedTensor:
    """`tensor` is contiguous; elements with the bits of `sentinel` are unchanged. `sentinel` None:
    the tensor is compared with the parameters, and nothing is written. `changes`, a TensorChanges,
    has the positions of the changed elements; `staged` has them in GPU memory, wherever the tensor
    is. `fill` makes the content on demand: copies that have a map do not need it."""

    name: str
    tensor: torch.Tensor
    sentinel: int | None
    changes: Any = None
    staged: StagedTensor | None = None
    fill: Callable[[], None] | None = None

    def make_content(self) -> None:
        """Must be called before anything reads the content."""
        fill, self.fill = self.fill, None
        if fill is not None:
            fill()


@dataclass(frozen=True)
class StagedTensor:
    """The changes of one tensor in the memory of a GPU."""

    masked: Any  # a MaskedDevice
    number: int  # of the tensor in it
    device: torch.device


# For each copy, keyed by its two views and dtypes: (its native map or None, the target's dtype).
Maps = dict[tuple[Any, ...], tuple[Any, str]]


_PART = 1 << 24  # elements per write by torch


class MaskedLoad(Watching):
    """Used once: load(), then undo() if load() raised or the commit is taken back."""

    def __init__(self, bound: BoundTensors, loading: set[int], maps: Maps | None = None) -> None:
        """`loading`: storages of the parameters that the tensors fill, by the trace. `maps`: a
        cache, because a loader makes the same copies in every version."""
        super().__init__(bound)
        self.loading = loading
        self.maps = maps if maps is not None else {}
        self.streams: dict[torch.device, int] = {}
        self.log: list[Callable[[], Any]] = []  # undoes each write
        self.saved: set[int] = set()
        self.tensors: dict[int, MaskedTensor] = {}

    def load(self, load_weights: LoadWeights, tensors: Iterable[MaskedTensor]) -> None:
        pairs = []
        for each in tensors:
            self.tensors[storage_key(each.tensor)] = each
            if each.staged is not None:
                self.stream(each.staged.device)  # this thread's stream, whichever thread copies
            if _without_modes is None:  # some reads go unobserved in these releases of torch
                each.make_content()
            pairs.append((each.name, self.offer(each.name, each.tensor)))

        try:
            with self.watching():
                load_weights(iter(pairs))
            for binding in self.bound.rebound():
                why = f"the loader puts another tensor in the place of '{binding.name}'"
                raise UnsupportedError(why)
            self.check_all_seen(pairs)
        except BaseException:
            with suppress(Exception):  # the caller's undo() reports it
                self.undo()
            raise
        finally:
            self.tensors.clear()  # they are large, and undo() does not need them

    def check_all_seen(self, pairs: list[tuple[str, torch.Tensor]]) -> None:
        """Raises unless a copy of every tensor was observed. A copy can be missing because an
        unobserved thread made it (then sentinels are in the module), or because the loader waits
        for another tensor. To find such loaders without harm, the target first loads
        every tensor with its present values."""
        seen = set().union(*self.filled.values())
        for name, _ in pairs:
            if name not in seen:
                raise UnsupportedError(f"no copy of tensor '{name}' by the loader was observed")

    def undo(self) -> None:
        self.bound.restore()
        with torch.no_grad():
            while self.log:
                self.log[-1]()  # an entry that raises stays
                self.log.pop()

    @contextmanager
    def modes(self) -> Iterator[None]:
        with super().modes(), FunctionMode(self.in_turn(self.see_call)):
            yield

    def see_call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Handles the loader's Python calls for views and for our copies without the dispatch mode,
        which slows every operation down several times. All other calls, and calls from C++, go
        through the dispatch mode."""
        if func not in _OURS or _without_modes is None or not args or not _is_plain(args[0]):
            return func(*args, **kwargs)
        if func in _VIEWS or (func is torch.Tensor.__getitem__ and _is_simple(args[1])):
            with _without_modes():
                return func(*args, **kwargs)
        if func is torch.Tensor.copy_ and len(args) > 1 and _is_plain(args[1]):
            with _without_modes():
                if self.take_copy(args[0], args[1]):
                    return args[0]
        if func in _READS:
            with _without_modes():
                self.make_contents(args[0])
        return func(*args, **kwargs)

    def see(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if only_views(func):
            view = func(*args, **kwargs)
            if not isinstance(view, torch.Tensor) or storage_key(view) != storage_key(args[0]):
                self.taint(tensors_in(view), self.names_of(tensors_in(args, kwargs)), op_name(func))
            return view
        if func is COPY and self.take_copy(args[0], args[1]):
            return args[0]
        targets = written(func, args, kwargs)
        storages = [storage for each in targets if (storage := self.bound.find(each))]
        names = self.names_of(tensors_in(args, kwargs))
        for each in targets:
            if storage_key(each) in self.tensors:
                name = self.tensors[storage_key(each)].name
                raise UnsupportedError(f"the loader changes tensor '{name}' by {op_name(func)}")
        if storages:
            if func in FILLS and storages[0].key in self.loading:
                return args[0]  # the old values are there, or a copy follows
            self.other_write(func, storages, names)
        elif func is TO_COPY and storage_key(args[0]) in self.tensors and names:
            moved = self.move(args[0], kwargs)
            if moved is not None:
                return moved
        self.make_contents(args, kwargs)
        result = func(*args, **kwargs)
        if names:
            self.taint(targets + tensors_in(result), names, op_name(func))
        return result

    def make_contents(self, *values: Any) -> None:
        """Makes the content of masked tensors that an operation reads."""
        for each in tensors_in(*values):
            if masked := self.tensors.get(storage_key(each)):
                masked.make_content()

    def move(self, source: torch.Tensor, options: dict[str, Any]) -> torch.Tensor | None:
        """tensor.to() in the same dtype is skipped: the copy into the parameter moves it, too."""
        dtype = options.get("dtype") or source.dtype
        return source.detach() if dtype == source.dtype else None

    def take_copy(self, target: torch.Tensor, source: torch.Tensor) -> bool:
        """Makes the copy if it leads from a masked tensor into the module. Returns whether it
        does."""
        masked = self.tensors.get(storage_key(source))
        storage = self.bound.find(target) if masked is not None else None
        if masked is None or storage is None:
            return False
        self.copy(masked, storage, target, source)
        return True

    def copy(
        self, masked: MaskedTensor, storage: Storage, target: torch.Tensor, source: torch.Tensor
    ) -> None:
        self.note_filled(storage.key, masked.name)
        if source.dtype != masked.tensor.dtype:
            raise UnsupportedError(
                f"tensor '{masked.name}': the loader reads it as {dtype_name(source.dtype)}"
            )
        if source.is_neg() or source.is_conj() or target.is_neg() or target.is_conj():
            raise UnsupportedError(
                f"tensor '{masked.name}': the loader negates or conjugates what it copies"
            )
        if masked.sentinel is None:
            self.compare(masked, storage, target, source)
        elif not self.write_mapped(masked, storage, target, source):
            self.write_elements(masked, target, source)

    @staticmethod
    def compare(
        masked: MaskedTensor, storage: Storage, target: torch.Tensor, source: torch.Tensor
    ) -> None:
        expected = source.to(device=target.device, dtype=target.dtype).expand(target.shape)
        if not torch.equal(bits(expected.contiguous()), bits(target.contiguous())):
            raise MismatchError(
                f"'{storage.name}' does not hold the values of '{masked.name}' where the loader "
                "puts them"
            )

    def write_mapped(
        self, masked: MaskedTensor, storage: Storage, target: torch.Tensor, source: torch.Tensor
    ) -> bool:
        """Writes by a native map, if this copy has one."""
        staged = masked.staged
        if staged is not None and staged.device != storage.device:
            staged = None
        if staged is None and storage.device.type != "cpu":
            return False
        native, to_name = self.map_of(masked, storage, target, source)
        if native is None:
            return False
        if staged is not None:
            stream = self.stream(staged.device)
            number = staged.masked.overwrite(
                staged.number, native, storage.address, to_name, stream
            )
            self.log.append(partial(staged.masked.undo, number, stream))
            return True
        if masked.changes is not None:
            made = masked.changes.overwrite(masked.name, native, storage.address, to_name)
            self.log.append(made.undo)
            return True
        masked.make_content()
        base = masked.tensor.untyped_storage().data_ptr()
        assert masked.sentinel is not None
        from_name = dtype_name(source.dtype)
        made = _native.MaskedWrite(
            native, base, from_name, masked.sentinel, storage.address, to_name
        )
        self.log.append(made.undo)
        return True

    def stream(self, device: torch.device) -> int:
        """The stream that is current when the load begins; the load waits for no other stream."""
        if device not in self.streams:
            self.streams[device] = torch.cuda.current_stream(device).cuda_stream
        return self.streams[device]

    def map_of(
        self, masked: MaskedTensor, storage: Storage, target: torch.Tensor, source: torch.Tensor
    ) -> tuple[Any, str]:
        key = (
            masked.name,
            source.storage_offset(),
            source.shape,
            source.stride(),
            source.dtype,
            storage.key,
            target.storage_offset(),
            target.shape,
            target.stride(),
            target.dtype,
        )
        known = self.maps.get(key)
        if known is None:
            known = self.maps[key] = self.make_map(masked, storage, target, source)
        return known

    @staticmethod
    def make_map(
        masked: MaskedTensor, storage: Storage, target: torch.Tensor, source: torch.Tensor
    ) -> tuple[Any, str]:
        from_name, to_name = dtype_name(source.dtype), dtype_name(target.dtype)
        if not _native.can_cast(from_name, to_name):
            return None, to_name
        try:
            native = _native.StridedMap(
                View.of(source, target.shape).native(),
                masked.tensor.numel(),
                View.of(target).native(),
                storage.size_bytes // target.element_size(),
            )
        except InvalidArgumentError:
            native = None
        return native, to_name

    def write_elements(
        self, masked: MaskedTensor, target: torch.Tensor, source: torch.Tensor
    ) -> None:
        """Writes bits by torch: expanded views, conversions that only torch makes, other
        devices."""
        assert masked.sentinel is not None
        masked.make_content()
        sentinel = _signed(masked.sentinel, source.element_size())
        for into, part in zip(_rows(target), _rows(source.expand(target.shape)), strict=True):
            part = part.to(target.device)
            places = (bits(part) != sentinel).nonzero(as_tuple=True)
            self.log.append(partial(bits(into).__setitem__, places, bits(into)[places]))
            new = bits(part)[places].view(part.dtype)
            bits(into)[places] = bits(new.to(target.dtype))

    def other_write(self, func: Any, storages: list[Storage], names: set[str]) -> None:
        """Records, for undo(), a write by a hook of the loader that has nothing to do with the
        masked tensors. Refuses any other."""
        for storage in storages:
            beside = storage.key in self.bound.beside  # computed again after the commit
            if (names and not beside) or storage.key in self.loading:
                raise UnsupportedError(
                    f"the loader writes into '{storage.name}' by {op_name(func)}, not by a copy of "
                    f"{', '.join(sorted(names)) or 'a tensor'}; nothing was changed"
                )
            if storage.key not in self.saved:
                self.saved.add(storage.key)
                self.log.append(storage.save().undo)


# Missing in some releases of torch; every operation then goes through the dispatch mode.
_without_modes = getattr(torch._C, "_DisableTorchDispatch", None)
_NO_DISPATCH = torch.Tensor.__torch_dispatch__
_VIEWS = {
    torch.Tensor.data.__get__,
    torch.Tensor.detach,
    torch.Tensor.expand,
    torch.Tensor.narrow,
    torch.Tensor.permute,
    torch.Tensor.select,
    torch.Tensor.squeeze,
    torch.Tensor.t,
    torch.Tensor.transpose,
    torch.Tensor.unsqueeze,
    torch.Tensor.view,
    torch.narrow,
    torch.permute,
    torch.select,
    torch.squeeze,
    torch.t,
    torch.transpose,
    torch.unsqueeze,
}


# Functions that expose a tensor's memory without an operation.
_READS = {
    torch.Tensor.__array__,
    torch.Tensor.__dlpack__,
    torch.Tensor.data_ptr,
    torch.Tensor.numpy,
    torch.Tensor.storage,
    torch.Tensor.tolist,
    torch.Tensor.untyped_storage,
}
_OURS = _VIEWS | _READS | {torch.Tensor.__getitem__, torch.Tensor.copy_}


def _is_simple(index: Any) -> bool:
    """Whether the index gives a view."""
    parts = index if type(index) is tuple else (index,)
    return all(type(part) in (int, slice) for part in parts)


def _is_plain(value: Any) -> bool:
    """A tensor, and not of a subclass that handles its operations itself."""
    return isinstance(value, torch.Tensor) and type(value).__torch_dispatch__ is _NO_DISPATCH


def _rows(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Slices along the first dimension, of at most _PART elements each if rows are that small."""
    if tensor.dim() == 0:
        return (tensor.unsqueeze(0),)
    if tensor.numel() <= _PART:
        return (tensor,)
    return tensor.split(max(1, _PART * tensor.shape[0] // tensor.numel()))


def _signed(pattern: int, width: int) -> int:
    """The pattern as torch's integer of this width; bytes are unsigned there."""
    if width == 1:
        return pattern & 0xFF
    limit = 1 << (8 * width)
    pattern &= limit - 1
    return pattern - limit if pattern >= limit // 2 else pattern


def fill_with(tensor: torch.Tensor, sentinel: int) -> None:
    bits(tensor).fill_(_signed(sentinel, tensor.element_size()))
