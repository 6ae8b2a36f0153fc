# SPDX-License-Identifier: Apache-2.0
"""Finds, before the next commit, what the engine did to its tensors without the target's knowledge.

    replaced     another tensor in a parameter's place, or other memory below it
    written      by a foreign load_weights or reload_weights, or an operation on the parameter
    rearranged   experts moved to other slots (EPLB): the placement tables have changed
    dropped      sleep level 2, which keeps no weights

Writes by `parameter.data`, by a pointer or below torch are not found here. A sweep finds them: it
reads all weights and compares their digest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import wraps
from operator import getitem, is_
from typing import Any

import torch

from ..errors import BusyError
from .bound import LOOKS, Binding, BoundTensors, bits, storage_key

# Parts of the names of the tables that map experts to slots.
TABLES = ("physical_to_logical", "logical_to_physical", "logical_to_all_physical", "expert_map")

# Returns the engine's own table, or None.
Placement = Callable[[], torch.Tensor | None]


@dataclass
class Found:
    """`what`: descriptions, for reports. `everything`: all values may have changed; otherwise only
    those in `storages`."""

    what: list[str] = field(default_factory=list)
    everything: bool = False
    storages: set[int] = field(default_factory=set)


class Moves:
    """Compares the tensors with their state at the last remember()."""

    def __init__(
        self,
        bound: BoundTensors,
        modules: Iterable[tuple[str, torch.nn.Module]],
        followed: set[int],
        placement: Placement | None,
    ) -> None:
        """`followed`: the storages that checkpoint tensors fill; `placement`: more tables."""
        self.bound, self.placement = bound, placement
        self.modules = list(modules)
        self.followed = [each for each in bound.bindings if storage_key(each.data) in followed]
        slots = [each.slot() for each in bound.bindings]
        self.slots = [list(column) for column in zip(*slots, strict=True)] or [[]] * 4
        addresses: list[Any] = [each.address for each in bound.bindings]
        self.looks = [(torch.Tensor.data_ptr, addresses)]
        self.looks += [(look, [look(each.data) for each in bound.bindings]) for look in LOOKS]
        self.loads = [(name, count_loads(module)) for name, module in self.modules]
        self.dropped: list[int] | None = None  # load counts at the time of the drop
        self.asleep: int | None = None  # the sleep level
        self.remember()
        everywhere: list[Any] = [*bound.places, *bound.bindings]
        self.places = [
            each for each in everywhere if any(part in each.name for part in TABLES)
        ]
        self.tables = {name: Table(value) for name, value in self.read_tables()}

    def sleeps(self, level: int) -> None:
        self.asleep = level
        if level >= 2:
            self.dropped = self.calls()

    def calls(self) -> list[int]:
        return [counter.calls for _, counter in self.loads]

    def lost(self) -> bool:
        """The weights were dropped, and nothing loaded them since."""
        return self.dropped is not None and self.calls() == self.dropped

    def remember(self) -> None:
        """Takes the current state as known."""
        self.versions = self.read_versions()
        self.seen_loads = self.calls()

    def read_tables(self) -> Iterator[tuple[str, Any]]:
        for each in self.places:
            yield each.name, each.current()
        if self.placement is not None:
            yield "the engine's placement of experts", self.placement()

    def check(self, paused: bool = False) -> None:
        """Raises if something was found: maps would write into memory that is no longer in use."""
        found = self.found(paused)
        if found.what:
            raise BusyError(
                f"{found.what[0]}. Nothing was changed: call ModuleTarget.follow() while the engine "
                "is idle, then stage again"
            )

    def check_places(self) -> None:
        """As check(), without looking for writes: a caller that reads the weights finds those
        itself."""
        found = Found()
        if self.asleep is not None:
            found.what.append(self.sleeping())
        else:
            self.find_moved(found)
        if found.what:
            raise BusyError(f"{found.what[0]}. Nothing was changed")

    def sleeping(self) -> str:
        return f"the engine sleeps at level {self.asleep}: wake it up first"

    def found(self, paused: bool = False) -> Found:
        """`paused`: the engine waits, so slow checks are left to the next staging."""
        found = Found()
        if self.asleep is not None:
            found.what.append(self.sleeping())
            return found  # there may be no memory to check
        if self.dropped is not None:
            found.what.append("the engine slept at level 2, and its weights were dropped")
            found.everything = True
        for (name, counter), seen in zip(self.loads, self.seen_loads, strict=True):
            if counter.calls != seen:
                whose = f"{name}.load_weights" if name else "load_weights"
                found.what.append(f"{whose}() was called by other code")
                found.everything = True
        self.find_moved(found, paused)
        versions = self.read_versions()
        if versions != self.versions:
            self.find_written(found, versions)
        return found

    def find_moved(self, found: Found, paused: bool = False) -> None:
        if not self.in_place(paused):
            self.find_rebound(found)
        for name, value in self.read_tables():
            if not self.tables[name].same(value):
                found.what.append(f"experts were rearranged: '{name}' has changed")
                found.everything = True

    def in_place(self, paused: bool) -> bool:
        """Whether nothing is rebound. With `paused` it takes 0.1 ms for 300 tensors, and does not
        check whether a tensor views its own memory in another way (transposed)."""
        modules, kinds, names, tensors = self.slots
        get: Any = dict.get  # typed for any value
        there = map(get, map(getitem, modules, kinds), names)
        if not all(map(is_, there, tensors)):
            return False
        looks = self.looks[:1] if paused else self.looks
        return all(list(map(look, tensors)) == seen for look, seen in looks)

    def read_versions(self) -> list[int]:
        """torch's write counter of each tensor; inference tensors have none."""
        try:
            return [each.tensor._version for each in self.followed]
        except RuntimeError:
            return [_version_of(each.tensor) for each in self.followed]

    def find_written(self, found: Found, versions: list[int]) -> None:
        for each, now, before in zip(self.followed, versions, self.versions, strict=True):
            if now != before and not each.rebound():
                found.what.append(f"'{each.name}' was written by other code")
                found.storages.add(storage_key(each.data))

    def find_rebound(self, found: Found) -> None:
        for each in self.bound.rebound():
            found.what.append(
                f"'{each.name}' is another tensor now: the engine replaced it or its memory"
            )
            if not _same_values(each):
                found.storages.add(storage_key(each.data))


class Table:
    """The remembered value of one table. Reading values from a GPU takes longer than a commit may,
    so there they are compared only if torch counted a write."""

    def __init__(self, value: Any) -> None:
        self.tensor = value if isinstance(value, torch.Tensor) else None
        self.values = value.clone() if self.tensor is not None else value
        self.mark = self.mark_of(value)

    @staticmethod
    def mark_of(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return None
        return value.data_ptr(), _version_of(value)

    def same(self, value: Any) -> bool:
        if not isinstance(value, torch.Tensor) or self.tensor is None:
            return value is None and self.values is None
        if value is self.tensor and value.device.type != "cpu" and self.mark_of(value) == self.mark:
            return True
        return value.shape == self.values.shape and torch.equal(value, self.values)


class LoadCounter:
    def __init__(self) -> None:
        self.calls = 0


def count_loads(module: torch.nn.Module) -> LoadCounter:
    """Counts calls of the module's load_weights from now on; our own calls use `uncounted`."""
    load: Any = getattr(module, "load_weights", None)
    if load is None:
        return LoadCounter()
    if hasattr(load, "counter"):
        return load.counter
    counter = LoadCounter()

    @wraps(load)
    def counted(*args: Any, **kwargs: Any) -> Any:
        counter.calls += 1
        return load(*args, **kwargs)

    counted.counter, counted.uncounted = counter, load  # type: ignore[attr-defined]
    module.__dict__["load_weights"] = counted
    return counter


def _same_values(binding: Binding) -> bool:
    """Whether the tensor in place now has the same bits as the old memory, which still exists."""
    new, old = binding.current(), binding.data
    if new is None or new.device.type == "meta":
        return False
    if new.shape != old.shape or new.dtype != old.dtype:
        return False
    if any(each.untyped_storage().nbytes() == 0 and each.numel() for each in (new, old)):
        return False
    if storage_key(new) == storage_key(old) and new.data_ptr() != binding.address:
        return False  # the storage was reallocated: the old bits are gone
    return torch.equal(bits(new.detach().contiguous()).to(old.device), bits(old.contiguous()))


def _version_of(tensor: torch.Tensor) -> int:
    try:
        return tensor._version
    except RuntimeError:  # inference tensors have no counter
        return 0
