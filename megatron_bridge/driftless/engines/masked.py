"""Masked overwrite: a loader is given full-shape tensors in which unchanged elements have the bits
of a sentinel, and its copies into the module write only the others.

The sentinel is chosen for each tensor, from the bits that none of its new values has: every NaN,
integer and 8-bit value arrives as it is. Copies of such tensors are the only writes that get
through to the parameters being loaded; fills of them are left out, anything else is refused. What
was written is undone by undo().
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from .. import _native
from ..errors import InvalidArgumentError, MismatchError, UnsupportedError
from .bound import BoundTensors, Storage, View, bits, dtype_name, storage_key
from .tracing import LoadWeights
from .watching import COPY, FILLS, TO_COPY, Origin, Watching, op_name, tensors_in, written


class Undo(Protocol):
    def undo(self) -> None: ...


@dataclass
class MaskedTensor:
    """`tensor` is contiguous; elements with the bits of `sentinel` are unchanged. None: the
    tensor is compared with what is there, and nothing is written. `news`, a TensorNews, knows
    which elements are not the sentinel, where all of its changes are in the tensor."""

    name: str
    tensor: torch.Tensor
    sentinel: int | None
    news: Any = None


@dataclass
class _Elements:
    """Old values of a view where a mask of the same shape is set."""

    target: torch.Tensor
    mask: torch.Tensor
    old: torch.Tensor

    def undo(self) -> None:
        bits(self.target)[self.mask] = self.old


@dataclass
class _Memory:
    """All of a storage, as it was."""

    storage: Storage
    old: torch.Tensor

    @staticmethod
    def of(storage: Storage) -> _Memory:
        return _Memory(storage, storage.flat(torch.uint8).clone())

    def undo(self) -> None:
        self.storage.flat(torch.uint8).copy_(self.old)


class MaskedLoad(Watching):
    """Used once: load(), and then undo() where it must be."""

    def __init__(self, bound: BoundTensors, loading: set[int]) -> None:
        """`loading`: storages of the parameters that the tensors go to, as they were traced."""
        super().__init__(bound)
        self.loading = loading
        self.log: list[Undo] = []
        self.saved: set[int] = set()
        self.tensors: dict[int, MaskedTensor] = {}

    def load(self, load_weights: LoadWeights, tensors: Iterable[MaskedTensor]) -> None:
        """All or nothing."""

        def offered() -> Iterator[tuple[str, torch.Tensor]]:
            for each in tensors:
                self.tensors[storage_key(each.tensor)] = each
                yield each.name, self.offer(each.name, each.tensor)

        try:
            with torch.no_grad(), self:
                load_weights(offered())
            for binding in self.bound.rebound():
                raise UnsupportedError(f"the loader puts another tensor in place of '{binding.name}'")
        except BaseException:
            self.undo()
            raise

    def undo(self) -> None:
        for binding in list(self.bound.rebound()):
            binding.restore()
        with torch.no_grad():
            while self.log:
                self.log.pop().undo()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        targets = written(func, args, kwargs)
        storages = [storage for each in targets if (storage := self.bound.find(each))]
        names = self.names_of(tensors_in(args, kwargs))
        for each in targets:
            if storage_key(each) in self.tensors:
                name = self.tensors[storage_key(each)].name
                raise UnsupportedError(f"the loader changes tensor '{name}' by {op_name(func)}")
        if storages:
            if func is COPY and storage_key(args[1]) in self.tensors:
                self.copy(storages[0], args[0], args[1])
                return args[0]
            if func in FILLS and storages[0].key in self.loading:
                return args[0]  # what it clears is there already, or comes
            self.other_write(func, storages, names)
        elif func is TO_COPY and storage_key(args[0]) in self.tensors and names:
            moved = self.move(args[0], kwargs)
            if moved is not None:
                return moved
        result = func(*args, **kwargs)
        if names:
            self.taint(targets + tensors_in(result), names, op_name(func))
        return result

    def move(self, source: torch.Tensor, options: dict[str, Any]) -> torch.Tensor | None:
        """tensor.to(): the copy into the parameter does that, too."""
        dtype = options.get("dtype") or source.dtype
        return source.detach() if dtype == source.dtype else None

    def copy(self, storage: Storage, target: torch.Tensor, source: torch.Tensor) -> None:
        masked = self.tensors[storage_key(source)]
        self.note_filled(storage.key, masked.name)
        origin: Origin = self.origins[storage_key(source)]
        if source.dtype != origin.dtype:
            raise UnsupportedError(
                f"tensor '{masked.name}': the loader reads it as {dtype_name(source.dtype)}"
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
        """By a native map, where there is one for this copy."""
        from_name, to_name = dtype_name(source.dtype), dtype_name(target.dtype)
        if target.device.type != "cpu" or not _native.can_cast(from_name, to_name):
            return False
        units = storage.size_bytes // target.element_size()
        try:
            native = _native.StridedMap(
                View.of(source, target.shape).native(),
                masked.tensor.numel(),
                View.of(target).native(),
                units,
            )
        except InvalidArgumentError:
            return False
        if masked.news is not None:
            self.log.append(masked.news.overwrite(masked.name, native, storage.address, to_name))
            return True
        base = masked.tensor.untyped_storage().data_ptr()
        assert masked.sentinel is not None
        self.log.append(
            _native.MaskedWrite(native, base, from_name, masked.sentinel, storage.address, to_name)
        )
        return True

    def write_elements(
        self, masked: MaskedTensor, target: torch.Tensor, source: torch.Tensor
    ) -> None:
        """Expanded views, conversions that only torch makes, devices: by torch, on the bits."""
        source = source.to(target.device).expand(target.shape)
        assert masked.sentinel is not None
        mask = bits(source) != _signed(masked.sentinel, source.element_size())
        new = bits(source.to(target.dtype))
        self.log.append(_Elements(target, mask, bits(target)[mask]))
        bits(target)[mask] = new[mask]

    def other_write(self, func: Any, storages: list[Storage], names: set[str]) -> None:
        """A hook of the loader may write elsewhere, from what has nothing to do with the masked
        tensors; that is kept for undo()."""
        for storage in storages:
            if names or storage.key in self.loading:
                raise UnsupportedError(
                    f"the loader writes into '{storage.name}' by {op_name(func)}, not by a copy of "
                    f"{', '.join(sorted(names)) or 'a tensor'}; nothing was changed"
                )
            if storage.key not in self.saved:
                self.saved.add(storage.key)
                self.log.append(_Memory.of(storage))


def _signed(pattern: int, width: int) -> int:
    """As torch's integers of this width have it; bytes are unsigned there."""
    if width == 1:
        return pattern & 0xFF
    limit = 1 << (8 * width)
    pattern &= limit - 1
    return pattern - limit if pattern >= limit // 2 else pattern


def filled_with(spec: Any, dtype: torch.dtype, sentinel: int) -> torch.Tensor:
    """A tensor of the spec's shape, all of it the sentinel."""
    tensor = torch.empty(spec.shape, dtype=dtype)
    bits(tensor).fill_(_signed(sentinel, tensor.element_size()))
    return tensor
