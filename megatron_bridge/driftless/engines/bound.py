# SPDX-License-Identifier: Apache-2.0
"""Describes where the tensors of modules lie in memory: parameters, buffers, and tensors kept as
plain attributes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import prod
from operator import attrgetter
from typing import Any

import torch

from .attributes import Attribute, attributes_of

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as integers of the same width."""
    return tensor.view(_BITS[tensor.element_size()])


def storage_key(tensor: torch.Tensor) -> int:
    """A key that all views of one memory share, also on the meta device."""
    return tensor.untyped_storage()._cdata


# How a tensor views its memory. Functions, to be mapped over many tensors.
LOOKS: tuple[Callable[[torch.Tensor], Any], ...] = (
    torch.Tensor.size,
    torch.Tensor.stride,
    attrgetter("dtype"),
)


@dataclass(frozen=True)
class View:
    """Offset, shape and strides within a storage, in elements."""

    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @staticmethod
    def of(tensor: torch.Tensor, shape: torch.Size | None = None) -> View:
        """The view of a tensor, or of the tensor expanded to `shape`."""
        if shape is not None and tensor.shape != shape:
            tensor = tensor.expand(shape)
        return View(int(tensor.storage_offset()), tuple(tensor.shape), tuple(tensor.stride()))

    @property
    def units(self) -> int:
        return prod(self.shape)

    def native(self) -> tuple[int, list[int], list[int]]:
        return self.offset, list(self.shape), list(self.strides)


@dataclass
class Binding:
    """One name of a tensor in a module."""

    name: str
    module: torch.nn.Module
    attribute: str
    is_parameter: bool
    tensor: torch.Tensor  # the object in the module
    data: torch.Tensor  # a second object over the same memory: survives `tensor.data = ...`
    address: int = 0  # of that memory, at the time of binding

    def table(self) -> dict[str, Any]:
        return self.module._parameters if self.is_parameter else self.module._buffers

    def slot(self) -> tuple[dict[str, Any], str, str, torch.Tensor]:
        """Where the name is looked up, and the tensor expected there, for checks that must be
        fast."""
        kind = "_parameters" if self.is_parameter else "_buffers"
        return self.module.__dict__, kind, self.attribute, self.tensor

    def rebound(self) -> bool:
        return self.table().get(self.attribute) is not self.tensor or self.moved()

    def moved(self) -> bool:
        """The name has other memory now, or another view of the same memory (transposed)."""
        tensor = self.tensor
        return tensor.data_ptr() != self.address or any(
            look(tensor) != look(self.data) for look in LOOKS
        )

    def current(self) -> torch.Tensor | None:
        return self.table().get(self.attribute)

    def restore(self) -> None:
        """Puts the object back into its place, over its memory."""
        self.table()[self.attribute] = self.tensor
        if self.moved():
            self.tensor.data = self.data


@dataclass
class Storage:
    """Memory of one or more tensors of the module."""

    key: int
    name: str  # of the first tensor in it
    storage: torch.UntypedStorage  # keeps it alive
    device: torch.device
    address: int
    size_bytes: int

    def flat(self, dtype: torch.dtype) -> torch.Tensor:
        """The whole storage as elements of a dtype."""
        usable = self.size_bytes // dtype.itemsize
        empty = torch.empty(0, dtype=dtype, device=self.device)
        return empty.set_(self.storage, 0, (usable,), (1,))

    def save(self) -> SavedStorage:
        return SavedStorage(self, self.flat(torch.uint8).clone())


@dataclass
class SavedStorage:
    """A copy of a whole storage."""

    storage: Storage
    old: torch.Tensor

    def undo(self) -> None:
        self.storage.flat(torch.uint8).copy_(self.old)

    def changed(self) -> bool:
        return not torch.equal(self.storage.flat(torch.uint8), self.old)


@dataclass
class BoundTensors:
    """Every parameter, buffer and attribute of the modules, at the time of binding."""

    bindings: list[Binding] = field(default_factory=list)
    storages: dict[int, Storage] = field(default_factory=dict)
    places: list[Attribute] = field(default_factory=list)  # of attributes
    # Filled only while a loader runs, so as not to keep these tensors alive.
    attributes: list[Attribute] = field(default_factory=list)
    beside: set[int] = field(default_factory=set)  # storages that only attributes use
    # While a loader runs: storages of the stand-ins that it takes for parameters, and their names
    # (load_layout.py).
    stand_ins: dict[int, str] = field(default_factory=dict)

    @staticmethod
    def of(*modules: tuple[str, torch.nn.Module]) -> BoundTensors:
        """Binds the tensors of each module. The string is the prefix of its tensor names."""
        bound = BoundTensors()
        owners = [
            (".".join(filter(None, (first, below))), owner)
            for first, module in modules
            for below, owner in module.named_modules(remove_duplicate=False)
        ]
        for prefix, owner in owners:
            for table, is_parameter in ((owner._parameters, True), (owner._buffers, False)):
                for attribute, tensor in table.items():
                    if tensor is None or tensor.device.type == "meta":
                        continue
                    name = f"{prefix}.{attribute}" if prefix else attribute
                    bound.add(name, owner, attribute, is_parameter, tensor)
        for prefix, owner in {id(owner): (prefix, owner) for prefix, owner in owners}.values():
            bound.places += attributes_of(prefix, owner.__dict__)
        return bound

    def add(
        self,
        name: str,
        owner: torch.nn.Module,
        attribute: str,
        is_parameter: bool,
        tensor: torch.Tensor,
    ) -> None:
        data = tensor.detach()
        self.bindings.append(
            Binding(name, owner, attribute, is_parameter, tensor, data, tensor.data_ptr())
        )
        self.add_storage(name, tensor)

    def add_storage(self, name: str, tensor: torch.Tensor) -> int:
        key = storage_key(tensor)
        if key not in self.storages:
            memory = tensor.untyped_storage()
            self.storages[key] = Storage(
                key, name, memory, tensor.device, memory.data_ptr(), memory.nbytes()
            )
        return key

    @contextmanager
    def with_attributes(self) -> Iterator[None]:
        """While this context is open, `storages` includes the memory of the current attributes."""
        for place in self.places:
            current = place.current()
            if isinstance(current, torch.Tensor) and current.device.type != "meta":
                top = place.root.get(place.path[0])
                self.attributes.append(replace(place, top=top, tensor=current))
                if storage_key(current) not in self.storages:
                    self.beside.add(self.add_storage(place.name, current))
        try:
            yield
        finally:
            for key in self.beside:
                self.storages.pop(key, None)
            self.attributes, self.beside = [], set()

    def rebound_attributes(self) -> list[Attribute]:
        """Attributes that were replaced since with_attributes() was entered."""
        return [each for each in self.attributes if each.current() is not each.tensor]

    def find(self, tensor: torch.Tensor) -> Storage | None:
        if tensor.device.type == "meta":
            return None
        return self.storages.get(storage_key(tensor))

    def rebound(self) -> Iterator[Binding]:
        return (binding for binding in self.bindings if binding.rebound())

    def restore(self) -> None:
        """Puts every object back into its place."""
        for binding in list(self.rebound()):
            binding.restore()
