# SPDX-License-Identifier: Apache-2.0
"""Plans how each checkpoint tensor is written, from the trace of the loader."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

import torch

from .. import _native
from ..errors import InvalidArgumentError
from ..torch_dtypes import dtype_name
from .bound import BoundTensors, Storage, View
from .load_layout import swap_halves
from .tracing import Copy, Trace


@dataclass
class PlannedMap:
    copy: Copy
    native: Any  # _native.StridedMap
    storage: Storage


@dataclass
class Plan:
    """`maps`: tensors written through maps. `masked`, `whole`, `reload`: tensors for the loader,
    with the reason. `changed`: tensors of parameters that the engine changed after loading."""

    maps: dict[str, list[PlannedMap]] = field(default_factory=lambda: defaultdict(list))
    masked: dict[str, str] = field(default_factory=dict)
    whole: dict[str, str] = field(default_factory=dict)
    reload: dict[str, str] = field(default_factory=dict)
    changed: set[str] = field(default_factory=set)
    # what to report of tensors that have maps or no destination
    notes: dict[str, str] = field(default_factory=dict)

    def demote(self, name: str, why: str) -> None:
        """Moves a tensor to the loader, as a whole tensor."""
        self.maps.pop(name, None)
        self.masked.pop(name, None)
        self.whole.setdefault(name, why)

    def leave(self, name: str) -> str:
        """Removes a tensor from all ways; returns the known reason why it has no map."""
        self.maps.pop(name, None)
        masked = self.masked.pop(name, "")
        return self.whole.pop(name, "") or masked

    def restrict(self, allow: Collection[str]) -> None:
        """Moves each tensor whose way is not allowed to the next way."""
        for name in list(self.maps) if not {"plan", "direct"} & set(allow) else ():
            if self.maps[name]:
                self.maps.pop(name)
                self.masked[name] = "maps are not allowed"
        for name in list(self.masked) if "masked" not in allow else ():
            self.demote(name, f"{self.masked[name]}; masked overwrite is not allowed")

    def device(self) -> torch.device | None:
        """The device of most mapped memory. Tensors on other devices go through the loader."""
        sizes: Counter[torch.device] = Counter()
        for maps in self.maps.values():
            for each in maps:
                sizes[each.storage.device] += each.native.units * each.copy.dtype.itemsize
        if not sizes:
            return None
        device = sizes.most_common(1)[0][0]
        for name, maps in list(self.maps.items()):
            if any(each.storage.device != device for each in maps):
                self.maps.pop(name)
                self.masked[name] = f"most parameters are on {device}, this one is not"
        return device


def make_plan(trace: Trace, bound: BoundTensors, layout: Any) -> Plan:
    plan = Plan()
    for spec in layout.tensors:
        if spec.name in trace.problems:
            plan.whole[spec.name] = trace.problems[spec.name]
            continue
        copies = trace.copies.get(spec.name, [])
        if not copies:
            plan.notes[spec.name] = "the loader does not take it"
        try:
            plan.maps[spec.name] = [_map_of(copy, spec, bound) for copy in copies]
        except (InvalidArgumentError, NotImplementedError) as error:
            plan.masked[spec.name] = str(error)
    _resolve_overlaps(plan, trace)
    plan.changed |= trace.changed
    return plan


def swap(plan: Plan, bound: BoundTensors, layout: Any, parameters: Collection[str]) -> None:
    """Exchanges the halves in the maps into these parameters."""
    data = {each.name: each.data for each in bound.bindings if each.name in parameters}
    specs = {spec.name: spec for spec in layout.tensors}
    for name, maps in plan.maps.items():
        for at, each in enumerate(maps):
            if each.copy.parameter in data:
                moved = swap_halves(each.copy, data[each.copy.parameter])
                if moved is not None:
                    maps[at] = _map_of(moved, specs[name], bound)


def _map_of(copy: Copy, spec: Any, bound: BoundTensors) -> PlannedMap:
    if not _native.can_cast(spec.dtype, dtype_name(copy.dtype)):
        raise InvalidArgumentError(
            f"'{copy.parameter}' is {dtype_name(copy.dtype)}, the tensor {spec.dtype}: "
            "a conversion that only torch makes"
        )
    storage = bound.storages[copy.storage]
    units = storage.size_bytes // copy.dtype.itemsize
    native = _native.StridedMap(copy.source.native(), spec.units, copy.target.native(), units)
    return PlannedMap(copy, native, storage)


def _resolve_overlaps(plan: Plan, trace: Trace) -> None:
    """If the loader writes memory twice, the last write counts."""
    by_storage: dict[int, list[PlannedMap]] = defaultdict(list)
    for maps in plan.maps.values():
        for each in maps:
            by_storage[each.copy.storage].append(each)
    for maps in by_storage.values():
        maps.sort(key=lambda each: each.copy.target.offset)
        for i, first in enumerate(maps):
            end = _end_of(first)
            for second in maps[i + 1 :]:
                if second.copy.target.offset * second.copy.dtype.itemsize >= end:
                    break
                if first.copy.dtype.itemsize != second.copy.dtype.itemsize or first.native.meets(
                    second.native
                ):
                    _resolve_pair(plan, first, second)
    for fill in trace.fills:
        _resolve_fill(plan, fill, by_storage.get(fill.storage, []))
    for storage, by in trace.hooks.items():
        for each in by_storage.get(storage, ()):
            why = f"the loader also writes into '{each.copy.parameter}' by {by}"
            plan.whole.setdefault(each.copy.name, why)
    for name in plan.whole:
        plan.masked.pop(name, None)
    for name in (*plan.masked, *plan.whole):
        plan.maps.pop(name, None)


def _end_of(planned: PlannedMap) -> int:
    """One past the last byte that the map writes."""
    view = planned.copy.target
    last = view.offset + sum((n - 1) * s for n, s in zip(view.shape, view.strides, strict=True))
    return (last + 1) * planned.copy.dtype.itemsize


def _resolve_pair(plan: Plan, a: PlannedMap, b: PlannedMap) -> None:
    earlier, later = sorted((a, b), key=lambda each: each.copy.order)
    if earlier.copy.target == later.copy.target and earlier.copy.dtype == later.copy.dtype:
        mine = plan.maps.get(earlier.copy.name, [])
        if any(each is earlier for each in mine):
            mine[:] = [each for each in mine if each is not earlier]
            if earlier.copy.name != later.copy.name:
                plan.notes[earlier.copy.name] = (
                    f"the loader writes '{later.copy.name}' over it in '{later.copy.parameter}'"
                )
        return
    why = f"the loader writes parts of '{later.copy.parameter}' twice"
    for name in {earlier.copy.name, later.copy.name}:
        plan.whole.setdefault(name, why)


def _resolve_fill(plan: Plan, fill: Any, maps: list[PlannedMap]) -> None:
    """A fill before the copy has no effect on a delta; a fill after the copy has."""
    for each in maps:
        if each.copy.order > fill.order:
            continue
        units = each.storage.size_bytes // fill.dtype.itemsize
        view = fill.target.native()
        try:
            dense = View.of(torch.empty(fill.target.shape, device="meta"))
            filled = _native.StridedMap(dense.native(), fill.target.units, view, units)
            meets = fill.dtype.itemsize != each.copy.dtype.itemsize or each.native.meets(filled)
        except InvalidArgumentError:
            meets = True
        if meets:
            why = f"the loader fills a part of '{each.copy.parameter}' after it copied there"
            plan.whole.setdefault(each.copy.name, why)


def guard(plan: Plan, base: Callable[[str], torch.Tensor]) -> dict[int, str]:
    """Compares all bits of the module with the checkpoint's, through every map. Returns the
    storages that differ, with their parameters."""
    by_device: dict[torch.device, list[tuple[str, PlannedMap]]] = defaultdict(list)
    for name, maps in plan.maps.items():
        for each in maps:
            by_device[each.storage.device].append((name, each))
    differing: dict[int, str] = {}
    for device, planned in by_device.items():
        for each in _that_differ(device, planned, base):
            differing.setdefault(each.copy.storage, each.copy.parameter)
    return differing


def guard_swapped(
    plan: Plan, bound: BoundTensors, layout: Any, base: Callable[[str], torch.Tensor]
) -> set[str]:
    """As guard(). If a parameter differs, tries the maps with swapped halves, for all parameters of
    its module that have two halves: a scale may have equal halves, and must be swapped with its
    weight. Tensors that still differ go to the loader, with all tensors mapped into the same
    memory. Returns the swapped parameters."""
    differing = guard(plan, base)
    owners = {name.rpartition(".")[0] for name in differing.values()}
    halved, others = _halved(plan, bound, owners)
    swapped = set[str]()
    for owner in owners if halved else ():
        mine = {name for name in halved - others if name.rpartition(".")[0] == owner}
        if not mine & set(differing.values()):
            continue
        swap(plan, bound, layout, mine)
        tried = Plan(maps=_into(plan, mine))
        if guard(tried, base):
            swap(plan, bound, layout, mine)  # swap back
            continue
        swapped |= mine
        differing = {key: name for key, name in differing.items() if name not in mine}
        for name in tried.maps:
            plan.notes.setdefault(name, "the engine has the halves of its parameter swapped")
    _demote(plan, differing)
    return swapped


def _halved(plan: Plan, bound: BoundTensors, owners: set[str]) -> tuple[set[str], set[str]]:
    """The parameters of these modules that tensors fill by halves, and those that tensors fill in
    any other way. A parameter may be in both."""
    data = {
        each.name: each.data for each in bound.bindings if each.name.rpartition(".")[0] in owners
    }
    halved, others = set[str](), set[str]()
    for maps in plan.maps.values():
        for each in maps:
            parameter = each.copy.parameter
            if parameter in data:
                moved = swap_halves(each.copy, data[parameter])
                (others if moved is None else halved).add(parameter)
    return halved, others


def _into(plan: Plan, parameters: set[str]) -> dict[str, list[PlannedMap]]:
    found = {
        name: [each for each in maps if each.copy.parameter in parameters]
        for name, maps in plan.maps.items()
    }
    return {name: maps for name, maps in found.items() if maps}


def _demote(plan: Plan, differing: dict[int, str]) -> None:
    for name, maps in list(plan.maps.items()):
        for each in maps:
            if each.copy.storage in differing:
                why = (
                    f"'{differing[each.copy.storage]}' does not hold the checkpoint's values where "
                    "the loader puts them (repacked, swapped or quantized after loading)"
                )
                plan.demote(name, why)
                plan.changed.add(name)
                break


def _that_differ(
    device: torch.device,
    planned: list[tuple[str, PlannedMap]],
    base: Callable[[str], torch.Tensor],
) -> list[PlannedMap]:
    # keeps them alive while they are read
    tensors = {name: base(name).contiguous() for name, _ in planned}
    maps = [
        (
            tensors[name].data_ptr(),
            tensors[name].numel(),
            dtype_name(tensors[name].dtype),
            each.storage.address,
            dtype_name(each.copy.dtype),
            each.native,
        )
        for name, each in planned
    ]
    if device.type == "cuda":
        torch.cuda.synchronize(device)  # the module's loading may be queued on any stream
    number = device.index if device.type == "cuda" else None
    agree = _native.hold_sources(maps, number)
    return [each for (_, each), same in zip(planned, agree, strict=True) if not same]
