# SPDX-License-Identifier: Apache-2.0
"""Tensors that a module keeps as plain attributes, not as parameters or buffers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

import torch

# How deep lists, dicts and helper objects (such as an attention backend) are searched.
_DEPTH = 2
# Attributes of torch.nn.Module itself.
_OF_MODULES = frozenset(torch.nn.Module().__dict__)


@dataclass
class Attribute:
    """A tensor in a module's __dict__ (`root`). `path` has the keys that lead to it: an attribute's
    name, then indexes into lists, dicts and helper objects. `top` is the attribute's value, and
    `tensor` the tensor. Both are None if the Attribute describes only a place."""

    name: str
    root: dict[str, Any]
    path: tuple[Any, ...]
    top: Any = None
    tensor: Any = None

    def current(self) -> Any:
        try:
            return _walk(self.root, self.path)
        except (KeyError, IndexError, TypeError, AttributeError):
            return None

    def restore(self) -> None:
        """Puts the tensor back into its place."""
        self.root[self.path[0]] = self.top
        if len(self.path) > 1:
            table = _table(_walk(self.root, self.path[:-1]))
            if isinstance(table, MutableMapping | list):
                table[self.path[-1]] = self.tensor

    def fits(self, other: Any) -> bool:
        """Whether another tensor's values fit into its memory."""
        return isinstance(other, torch.Tensor) and all(
            getattr(other, what) == getattr(self.tensor, what)
            for what in ("shape", "dtype", "device")
        )


def attributes_of(prefix: str, root: dict[str, Any]) -> Iterator[Attribute]:
    """The places of all tensors that `root`, a module's __dict__, keeps as plain attributes."""
    for key, value in list(root.items()):
        if key not in _OF_MODULES:
            for path in _tensors_in(value, (key,)):
                name = ".".join(map(str, (prefix, *path) if prefix else path))
                yield Attribute(name, root, path)


def _tensors_in(value: Any, path: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    if isinstance(value, torch.Tensor):
        if value.layout == torch.strided and value.device.type != "meta":
            yield path
        return
    if len(path) > _DEPTH or isinstance(value, torch.nn.Module | type) or callable(value):
        return
    table = _table(value)
    if table is not None:
        entries = table.items() if isinstance(table, Mapping) else enumerate(table)
        for key, below in list(entries):
            yield from _tensors_in(below, (*path, key))


def _table(value: Any) -> Any:
    """The container of entries: the value itself, or an object's attributes."""
    if isinstance(value, Mapping | list | tuple):
        return value
    return getattr(value, "__dict__", None)


def _walk(value: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        value = _table(value)[key]
    return value
