# SPDX-License-Identifier: Apache-2.0
"""Traces what a module's loader does with each checkpoint tensor, without any values.

The loader runs once on meta tensors of the checkpoint's shapes, under a dispatch mode that sees
every operation. Copies and other writes into the module's memory are recorded, not executed.
Nothing in the module changes, whatever the loader does.
"""

from __future__ import annotations

import gc
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from ..torch_dtypes import TORCH_DTYPES, dtype_name
from .bound import BoundTensors, Storage, View, bits, storage_key
from .watching import CAT, COPY, FILLS, TO_COPY, Origin, Watching, op_name, tensors_in, written

LoadWeights = Callable[[Iterable[tuple[str, torch.Tensor]]], Any]

# After this many runs in which the loader raised, each tensor gets a run of its own.
_MOST_RESTARTS = 4


@dataclass(frozen=True)
class Copy:
    """A copy from a view of a checkpoint tensor into a view of the module's memory."""

    name: str  # of the checkpoint tensor
    source: View
    parameter: str
    storage: int  # the storage's key
    target: View
    dtype: torch.dtype  # of the target
    order: int

    def holds(self, into: Storage, tensor: torch.Tensor) -> bool:
        """Whether the module holds the tensor's bits at every destination of the copy."""
        flat = tensor.contiguous().view(-1)
        source = flat.as_strided(self.source.shape, self.source.strides, self.source.offset)
        target = into.flat(self.dtype)
        held = target.as_strided(self.target.shape, self.target.strides, self.target.offset)
        expected = bits(source.to(self.dtype).contiguous())
        return torch.equal(expected, bits(held.contiguous()).cpu())


@dataclass(frozen=True)
class Fill:
    storage: int
    target: View
    dtype: torch.dtype
    order: int


@dataclass
class Trace:
    copies: dict[str, list[Copy]] = field(default_factory=lambda: defaultdict(list))
    fills: list[Fill] = field(default_factory=list)
    # why copies alone do not describe the tensor
    problems: dict[str, str] = field(default_factory=dict)
    parameters: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    # Storages that hooks of the loader write without the checkpoint, and by which operation.
    hooks: dict[int, str] = field(default_factory=dict)
    # Tensors from which the loader computes attributes, and these attributes.
    derived: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    # tensor at which the loader raised -> exception
    raised: dict[str, str] = field(default_factory=dict)
    # Tensors of parameters that the engine changed after loading.
    changed: set[str] = field(default_factory=set)
    # Those of `changed` that the loader's copies cannot update, with the reason.
    unwritable: dict[str, str] = field(default_factory=dict)
    operations: int = 0  # seen so far

    def problem(self, names: Iterable[str], why: str, parameter: str = "") -> None:
        for name in names:
            self.problems.setdefault(name, why)
            if parameter:
                self.parameters[name].add(parameter)


    def add(self, other: Trace, only: Container[str]) -> None:
        """Adds the trace of another loader for these tensors, which runs after this one."""
        later = self.operations
        self.operations += other.operations
        for name, copies in other.copies.items():
            if name in only:
                self.copies[name] += [replace(each, order=each.order + later) for each in copies]
        self.fills += [replace(each, order=each.order + later) for each in other.fills]
        for name, why in other.problems.items():
            if name in only:
                self.problems.setdefault(name, why)
        for into, of in ((self.parameters, other.parameters), (self.derived, other.derived)):
            for name, found in of.items():
                if name in only:
                    into[name] |= found
        for storage, by in other.hooks.items():
            self.hooks.setdefault(storage, by)
        self.changed |= {name for name in other.changed if name in only}


@dataclass(frozen=True)
class _Joined:
    """A temporary that joins several tensors: a loader may wait for all parts of a fused
    parameter."""

    dim: int
    whole: View
    parts: tuple[tuple[int, int, Origin, View], ...]  # (begin, length, origin, view)


class _Tracer(Watching):
    def __init__(self, bound: BoundTensors, trace: Trace) -> None:
        super().__init__(bound)
        self.trace = trace
        self.joined: dict[int, _Joined] = {}

    def see(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.trace.operations += 1
        targets = [args[0]] if func is COPY else written(func, args, kwargs)
        for each in targets:
            if storage_key(each) in self.bound.stand_ins:
                self.note_stand_in(each, self.names_of(tensors_in(args, kwargs)))
        if func is COPY:
            return self.copy(args[0], args[1])
        if any(self.bound.find(each) for each in targets):
            return self.other_write(func, targets, args, kwargs)
        names = self.names_of(tensors_in(args, kwargs))
        if func is TO_COPY and names:
            converted = self.convert(args[0], kwargs)
            if converted is not None:
                return converted
        if targets and names:  # the loaded tensor itself, or a temporary that holds it
            self.taint(targets, names, op_name(func))
            touched = [key for key in map(storage_key, targets) if key in self.origins]
            if touched:
                why = f"the loader changes the loaded tensor by {op_name(func)}"
                self.trace.problem(names, why)
        result = func(*args, **kwargs)
        if names:
            self.taint(tensors_in(result), names, op_name(func))
            if func is CAT:
                self.note_joined(result, args[0], args[1] if len(args) > 1 else 0)
        return result

    def note_stand_in(self, target: torch.Tensor, names: set[str]) -> None:
        parameter = self.bound.stand_ins[storage_key(target)]
        why = f"'{parameter}' has another type or shape than it was loaded with"
        self.trace.problem(names, why, parameter)
        self.trace.changed |= names

    def note_joined(self, result: torch.Tensor, parts: list[torch.Tensor], dim: int) -> None:
        origins = [self.origins.get(storage_key(each)) for each in parts]
        known = [each for each in origins if each is not None and not each.converted]
        same = all(each.dtype == result.dtype for each in known)
        same = same and all(each.dim() == result.dim() for each in parts)
        if len(known) != len(parts) or not same:
            return
        dim, at, found = dim % result.dim(), 0, []
        for each, origin in zip(parts, known, strict=True):
            found.append((at, each.shape[dim], origin, View.of(each)))
            at += each.shape[dim]
        self.joined[storage_key(result)] = _Joined(dim, View.of(result), tuple(found))

    def convert(self, source: torch.Tensor, options: dict[str, Any]) -> torch.Tensor | None:
        """tensor.to(): another device or dtype. The result keeps its origin."""
        origin = self.origins.get(storage_key(source))
        if origin is None:
            return None
        dtype = options.get("dtype") or source.dtype
        if dtype == source.dtype:
            return source.detach()
        if origin.dtype != source.dtype or origin.converted:
            return None
        room = source.untyped_storage().nbytes() // source.element_size()
        base = torch.empty(room, dtype=dtype, device="meta")
        self.origins[storage_key(base)] = Origin(origin.name, dtype, converted=True)
        self.keep(base)
        return base.as_strided(source.shape, source.stride(), source.storage_offset())

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        storage = self.bound.find(target)
        names = self.names_of([source])
        if storage is not None and storage.key in self.bound.beside:
            self.note_derived(storage.name, names)
            return target
        if storage is None:
            if names:
                self.taint([target], names, "a copy into a temporary")
                key = storage_key(target)
                if key in self.origins:
                    why = "the loader copies into the loaded tensor"
                    self.trace.problem(names | {self.origins[key].name}, why)
                return target
            return COPY(target, source)
        joined = self.joined.get(storage_key(source))
        if joined is not None and View.of(source) == joined.whole and target.shape == source.shape:
            for at, size, each, view in joined.parts:
                into = target.narrow(joined.dim, at, size)
                self.note_copy(each, view, storage, into, target.dtype)
            return target
        origin = self.origins.get(storage_key(source))
        if origin is None:
            how = self.derived.get(storage_key(source), (None, "a copy"))[1]
            if not names:
                self.trace.hooks.setdefault(storage.key, how)
            why = f"the loader computes what it copies into '{storage.name}' (by {how})"
            self.trace.problem(names, why, storage.name)
            return target
        dtype = target.dtype
        if source.dtype != origin.dtype:  # a view of the bits as another dtype
            if source.dtype != target.dtype or source.element_size() != origin.dtype.itemsize:
                why = f"the loader reads the tensor as {dtype_name(source.dtype)}"
                self.trace.problem(names, why, storage.name)
                return target
            dtype = origin.dtype
        if origin.converted and origin.dtype != dtype:
            why = f"the loader converts the tensor twice on its way into '{storage.name}'"
            self.trace.problem(names, why, storage.name)
            return target
        self.note_copy(origin, View.of(source, target.shape), storage, target, dtype)
        return target

    def note_copy(
        self,
        origin: Origin,
        source: View,
        storage: Storage,
        target: torch.Tensor,
        dtype: torch.dtype,
    ) -> None:
        self.trace.copies[origin.name].append(
            Copy(
                origin.name,
                source,
                storage.name,
                storage.key,
                View.of(target),
                dtype,
                self.trace.operations,
            )
        )
        self.trace.parameters[origin.name].add(storage.name)
        self.note_filled(storage.key, origin.name)

    def other_write(
        self, func: Any, targets: list[torch.Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        into = {storage_key(target) for target in targets}
        inputs = [each for each in tensors_in(args, kwargs) if storage_key(each) not in into]
        names = self.names_of(inputs)
        for target in targets:
            storage = self.bound.find(target)
            if storage is None:
                continue
            if storage.key in self.bound.beside:
                self.note_derived(storage.name, names | self.names_of([target]))
                continue
            if func in FILLS and not names:
                fill = Fill(storage.key, View.of(target), target.dtype, self.trace.operations)
                self.trace.fills.append(fill)
                continue
            if not names:
                self.trace.hooks.setdefault(storage.key, op_name(func))
            why = f"the loader writes into '{storage.name}' by {op_name(func)}"
            self.trace.problem(names, why, storage.name)
        return targets[0] if len(targets) == 1 else tuple(targets)

    def note_derived(self, attribute: str, names: set[str]) -> None:
        for name in names:
            self.trace.derived[name].add(attribute)

    def ended(self) -> None:
        for each in self.bound.rebound_attributes():
            new = each.current()
            if isinstance(new, torch.Tensor):
                self.note_derived(each.name, self.names_of([new]))

    def blamed(self, storage: int) -> set[str]:
        """The tensors that may have caused a write whose cause is not known."""
        names = self.filled.get(storage, set())
        return names | ({self.current} if self.current else set())


def _run(
    load_weights: LoadWeights, bound: BoundTensors, specs: list[Any], trace: Trace
) -> str | None:
    """Returns the name of the tensor at which the loader raised, after recording it; or None."""
    tracer = _Tracer(bound, trace)
    held: dict[str, StorageWeakRef] = {}

    def watched() -> Iterator[tuple[str, torch.Tensor]]:
        for spec in specs:
            tensor = torch.empty(spec.shape, dtype=TORCH_DTYPES[spec.dtype], device="meta")
            held[spec.name] = StorageWeakRef(tensor.untyped_storage())
            yield spec.name, tracer.offer(spec.name, tensor)

    failed = None
    try:
        with tracer.watching():
            load_weights(watched())
    except Exception as error:
        failed = tracer.current or ""
        text = str(error).split("\n")[0][:200]
        trace.problem([failed], f"the loader looks at values ({type(error).__name__}: {text})")
        trace.raised[failed] = type(error).__name__
    _note_rebound(bound, tracer, trace)
    if failed is None:
        _note_kept(held, trace)
        _note_hidden(tracer, trace)
    return failed


def _note_rebound(bound: BoundTensors, tracer: _Tracer, trace: Trace) -> None:
    for binding in bound.rebound():
        current = binding.current()
        names: set[str] = set()
        for each in (current, binding.tensor):
            if each is not None:
                names |= tracer.names_of([each])
        blamed = names or tracer.blamed(storage_key(binding.data))
        why = f"the loader puts another tensor in the place of '{binding.name}'"
        trace.problem(blamed, why, binding.name)
        binding.restore()


def _note_kept(held: dict[str, StorageWeakRef], trace: Trace) -> None:
    def alive() -> list[str]:
        return [name for name, ref in held.items() if not ref.expired()]

    if alive():
        gc.collect()
    trace.problem(alive(), "the loader keeps the tensor, and may use it later")


def _note_hidden(tracer: _Tracer, trace: Trace) -> None:
    """Reports tensors from which the loader computed values that are still alive, but not in a
    parameter, buffer or attribute."""

    def alive() -> list[tuple[set[str], str]]:
        return [made for key, made in tracer.derived.items() if not tracer.kept[key].expired()]

    if alive():
        gc.collect()
    for names, how in alive():
        trace.problem(names, f"the loader keeps values of it outside the modules (by {how})")


def trace_loader(load_weights: LoadWeights, bound: BoundTensors, specs: list[Any]) -> Trace:
    """Runs the loader on meta tensors like `specs` (driftless.TensorSpec). If it raises at a
    tensor, it runs again without that tensor, and finally on each tensor alone."""
    trace = Trace()
    without = {spec.name for spec in specs if spec.dtype not in TORCH_DTYPES}
    trace.problem(without, "torch has no such type")
    problems: dict[str, str] = dict(trace.problems)
    raised: dict[str, str] = {}
    for _ in range(_MOST_RESTARTS):
        trace = Trace(problems=dict(problems), raised=raised)
        left = [spec for spec in specs if spec.name not in without]
        failed = _run(load_weights, bound, left, trace)
        if failed is None:
            return trace
        if not failed:
            break  # before it took any tensor
        problems[failed] = trace.problems[failed]
        without.add(failed)
    trace = Trace(problems=dict(problems), raised=raised)
    for spec in specs:
        if spec.name not in without:
            _run(load_weights, bound, [spec], trace)
    return trace
