# SPDX-License-Identifier: Apache-2.0
"""Engines that change parameters after loading: quantized layers get other objects, other dtypes,
other layouts.

The engine's loader must see the parameters as they were before that change (`loading`). If the
memory still has the loaded shape and dtype, the loader gets that memory; the guard (planning.py)
then checks that it also has the loaded values. If not, the loader gets a stand-in. Tensors that go
to a stand-in cannot be written in place: the engine loads the module again (`reload`), or the
tensor is refused.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch

from .bound import BoundTensors, storage_key
from .tracing import Copy, LoadWeights, Trace

# Storages of stand-ins, and the names of the parameters that they stand for.
StandIns = dict[int, str]


class ModuleReloads(Protocol):
    """The engine's own way to load some of its modules again."""

    def module_of(self, parameter: str) -> str | None:
        """The smallest module that the engine can load alone; None: there is none."""

    def reload(
        self, modules: Iterable[str], weights: list[tuple[str, torch.Tensor]]
    ) -> None:
        """`weights` are all tensors of these modules, and no others."""


@dataclass(frozen=True)
class LoadLayout:
    """`loading(stand_ins)`: a context in which the engine's loader finds the parameters that it
    expects. `unwritable()`: parameters that must not be written in place although they hold the
    loaded values, with the reason. `only_rule`: the only quantization rule whose codes and
    scales the engine keeps unchanged in a parameter ("": it keeps those of every rule). `advice`:
    what the operator can set so that a parameter stays as loaded."""

    loading: Callable[[StandIns], AbstractContextManager[Any]] = lambda _: nullcontext()
    unwritable: Callable[[], Mapping[str, str]] = dict
    reloads: ModuleReloads | None = None
    only_rule: Callable[[str], str] = lambda _: ""
    advice: Callable[[str], str] = lambda _: ""

    def wrap(self, load_weights: LoadWeights, stand_ins: StandIns) -> LoadWeights:
        def load(weights: Iterable[tuple[str, torch.Tensor]]) -> Any:
            with self.loading(stand_ins):
                return load_weights(weights)

        return load


@dataclass
class Restored:
    """A parameter as the loader expects it, in place of the engine's."""

    table: dict[str, Any]
    name: str
    view: torch.Tensor
    held: torch.Tensor | None  # the engine's parameter; None: `view` is a stand-in
    was: tuple[bool, Any]  # whether the table had the name, and its value
    address: int = 0

    def put_back(self) -> None:
        """Restores the engine's value, unless the loader replaced the parameter:
        BoundTensors.rebound() finds and reports such a replacement."""
        there = self.table.get(self.name)
        if self.held is not None and (
            there is not self.view or self.view.data_ptr() != self.address
        ):
            return
        had, what = self.was
        if had:
            self.table[self.name] = what
        else:
            self.table.pop(self.name, None)


def restore(
    table: dict[str, Any],
    name: str,
    wanted: torch.Tensor,
    stand_ins: StandIns,
    called: str,
    bind: Callable[[torch.Tensor], Any],
) -> Restored | None:
    """Puts a parameter with the class and attributes of `wanted` into a module's table, over the
    engine's memory if shape and dtype match. None: the parameter is already as wanted. Calls `bind`
    with the new parameter; `called` is its full name."""
    was = name in table, table.get(name)
    held: torch.Tensor | None = was[1]
    if held is not None and (
        held.shape != wanted.shape or held.dtype != wanted.dtype or held.device.type == "meta"
    ):
        held = None
    if held is None:
        shape, strides = wanted.shape, wanted.stride()
        view = torch.empty_strided(shape, strides, dtype=wanted.dtype, device="meta")
        stand_ins[storage_key(view)] = called
    elif type(held) is type(wanted) and held.__dict__.keys() >= wanted.__dict__.keys():
        return None
    else:
        view = held.detach()
    view.__class__ = wanted.__class__
    view.__dict__ = dict(wanted.__dict__)
    bind(view)
    table[name] = view
    return Restored(table, name, view, held, was, 0 if held is None else view.data_ptr())


@contextmanager
def put_back(restored: list[Restored], stand_ins: StandIns) -> Iterator[None]:
    try:
        yield
    finally:
        for each in reversed(restored):
            each.put_back()
        stand_ins.clear()


# --- tensors that may be computed from codes and scales -------------------------------------------

# Words in the names of tensors that quantized layers compute from their weights, and words that
# rule this out.
_COPIES, _NO_COPIES = ("weight", "scale"), ("input_scale", "expert")


def beside_quantized(bound: BoundTensors, trace: Trace) -> dict[str, str]:
    """Parameters of quantized layers that hold more tensors than the checkpoint (swizzled scales,
    weights in a wider dtype), with the reason. Nothing computes these again after a commit."""
    followed = {copy.storage for copies in trace.copies.values() for copy in copies}
    layers: dict[int, list[Any]] = defaultdict(list)
    for each in bound.bindings:
        layers[id(each.module)].append(each)
    found: dict[str, str] = {}
    for mine in layers.values():
        ours = [each for each in mine if storage_key(each.data) in followed]
        if not any(each.data.dtype.is_floating_point and each.data.element_size() == 1
                   for each in ours):  # fmt: skip
            continue
        owners = [mine[0].module.__dict__, *(each.tensor.__dict__ for each in ours)]
        tensors = [(each.attribute, each.data) for each in mine]
        tensors += [pair for owner in owners for pair in owner.items()]
        for name, tensor in tensors:
            if _may_be_a_copy(name, tensor) and storage_key(tensor) not in followed:
                why = f"its layer's '{name}' may be computed from it, and nothing computes it again"
                found |= {each.name: why for each in ours}
    return found


def unloaded(bound: BoundTensors, trace: Trace, but: tuple[str, ...]) -> str | None:
    """A quantized parameter that no tensor fills: its loader skipped it silently. `but`: prefixes
    of drafters, which may come from another checkpoint."""
    reached = {copy.storage for copies in trace.copies.values() for copy in copies}
    named = set().union(*trace.parameters.values())
    for each in bound.bindings:
        narrow = each.data.dtype.is_floating_point and each.data.element_size() == 1
        if narrow and storage_key(each.data) not in reached and each.name not in named:
            if not each.name.startswith(but):
                return each.name
    return None


def _may_be_a_copy(name: str, tensor: Any) -> bool:
    if not isinstance(tensor, torch.Tensor) or tensor.numel() < 2:
        return False
    return any(part in name for part in _COPIES) and not any(part in name for part in _NO_COPIES)


# --- rows in another order ------------------------------------------------------------------------


def swap_halves(copy: Copy, parameter: torch.Tensor) -> Copy | None:
    """The copy for a parameter whose upper and lower halves are swapped (FlashInfer keeps w31
    instead of w13); None if the copy does not go into exactly one half."""
    if parameter.dim() not in (2, 3) or parameter.shape[-2] % 2 or not parameter.is_contiguous():
        return None
    half = parameter.shape[-2] // 2 * parameter.shape[-1]
    view = copy.target
    at = (view.offset - parameter.storage_offset()) % (2 * half) if half else 0
    last = at + sum((n - 1) * stride for n, stride in zip(view.shape, view.strides, strict=True))
    if not half or at // half != last // half:
        return None
    moved = view.offset + (half if at < half else -half)
    return replace(copy, target=replace(view, offset=moved))


# --- modules that the engine loads again ----------------------------------------------------------


@dataclass(frozen=True)
class ReloadGroup:
    """Modules that must be loaded together, because one tensor goes to all of them."""

    modules: tuple[str, ...]
    names: tuple[str, ...]  # all tensors of these modules


def reload_groups(
    refused: Iterable[str], trace: Trace, bound: BoundTensors, reloads: ModuleReloads
) -> list[ReloadGroup]:
    """Groups for the refused tensors whose parameters are all in modules that can be loaded
    again."""
    modules_of: dict[str, set[str | None]] = {
        name: {reloads.module_of(parameter) for parameter in parameters}
        for name, parameters in trace.parameters.items()
        if parameters
    }
    names_of: dict[str, set[str]] = defaultdict(set)
    for name, modules in modules_of.items():
        for module in modules:
            if module is not None:
                names_of[module].add(name)
    groups, done = [], set[str]()
    for name in refused:
        if name in done or name not in modules_of:
            continue
        names, modules, left = set[str](), set[str | None](), {name}
        while left:
            each = left.pop()
            names.add(each)
            for module in modules_of[each] - modules:
                modules.add(module)
                left |= names_of.get(module or "", set()) - names
        done |= names
        if None not in modules:
            found = sorted(module for module in modules if module is not None)
            groups.append(ReloadGroup(tuple(found), tuple(sorted(names))))
    return groups
