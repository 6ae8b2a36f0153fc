# SPDX-License-Identifier: Apache-2.0
"""Tensors that a module computes from its parameters after loading: MLA's w_kc and w_vc, fused
copies, scales. They are attributes, or parameters that no checkpoint tensor fills.

Engines have functions that compute them. When the target is made, each function runs once under
observation, which shows what it reads and writes. If that run changes no bit, the function runs
again after every commit. A version is refused if it changes a parameter that cannot be followed:
one that is read by a function which did change bits, or one of which the module holds a copy that
no known function computes. Rotary tables, masks and caches are left alone: no function computes
them, or their function reads no parameter.
"""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ..errors import UnsupportedError
from .bound import Binding, BoundTensors, Storage, storage_key
from .copies import unexplained_copies
from .planning import Plan
from .tracing import Trace
from .watching import COPY, FILLS, tensors_in, written
from .whole import WholeLoad

# Names of these functions: in vLLM's attention layers and models; in SGLang's models.
METHODS = ("process_weights_after_loading", "post_load_weights")


@dataclass(frozen=True)
class Refresh:
    """A function of the engine that computes tensors from loaded parameters, for all its
    modules."""

    name: str
    run: Callable[[], Any]


def find_refreshes(
    modules: Iterable[tuple[str, torch.nn.Module]], dtype: torch.dtype | None = None
) -> list[Refresh]:
    """The modules' METHODS. Of nested post_load_weights only the outermost is returned, because it
    calls the others. `dtype` is passed to methods that take one."""
    found: list[Refresh] = []
    for first, module in modules:
        taken: list[str] = []
        for below, owner in module.named_modules():
            prefix = ".".join(filter(None, (first, below)))
            for method in METHODS:
                call = _callable(owner, method, dtype)
                inner = any(prefix.startswith(f"{each}.") or not each for each in taken)
                if call is None or (method == METHODS[1] and inner):
                    continue  # the enclosing module's method calls it
                if method == METHODS[1]:
                    taken.append(prefix)
                found.append(Refresh(f"{prefix}.{method}" if prefix else method, call))
    return found


def _callable(owner: Any, method: str, dtype: torch.dtype | None) -> Callable[[], Any] | None:
    call = getattr(owner, method, None)
    if not callable(call):
        return None
    needed = [
        each
        for each in inspect.signature(call).parameters.values()
        if each.default is each.empty
        and each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
    ]
    if not needed:
        return call
    if len(needed) == 1 and needed[0].name.endswith("dtype"):
        chosen = dtype or next((p.dtype for p in owner.parameters() if p.is_floating_point()), None)
        return lambda: call(chosen or torch.get_default_dtype())
    return None


class _Probe(WholeLoad):
    """A watched run that also records what was read, and what was computed from it."""

    def __init__(self, bound: BoundTensors) -> None:
        super().__init__(bound)
        self.reads: set[int] = set()
        self.results: set[int] = set()
        self.computed: set[int] = set()  # storages

    def see(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        targets = written(func, args, kwargs)
        covered = {id(each) for each in targets} if func is COPY or func in FILLS else set()
        read = {storage_key(each) for each in tensors_in(args, kwargs) if id(each) not in covered}
        held = {key for key in read if key in self.bound.storages}
        self.reads |= held
        result = super().see(func, args, kwargs)
        if held or read & self.computed:
            for each in (*targets, *tensors_in(result)):
                self.note_computed(each)
        return result

    def note_computed(self, tensor: torch.Tensor) -> None:
        self.keep(tensor)
        self.computed.add(storage_key(tensor))

    def save(self, storage: Storage) -> None:
        super().save(storage)
        self.results.add(storage.key)

    def names(self) -> set[str]:
        """Names of tensors that were written with computed values."""
        return {self.before[key].storage.name for key in self.results & self.computed}

    def complete(self, binding: Binding) -> None:
        self.pass_on(binding.current(), binding.data)
        super().complete(binding)

    def ended(self) -> None:
        for each in self.bound.rebound_attributes():
            self.pass_on(each.current(), each.tensor)
        super().ended()

    def pass_on(self, new: Any, old: torch.Tensor) -> None:
        """Marks `old` as computed if its replacement was computed."""
        if isinstance(new, torch.Tensor) and storage_key(new) in self.computed:
            self.note_computed(old)


@dataclass
class Derivation:
    """The effect of one refresh. `problem`: why it cannot run again."""

    refresh: Refresh
    sources: set[int]
    results: set[str]
    problem: str | None = None


@dataclass
class Derived:
    """Tensors that are computed again after each commit."""

    bound: BoundTensors
    derivations: list[Derivation] = field(default_factory=list)

    @property
    def names(self) -> dict[str, str]:
        """tensor -> the function that computes it."""
        return {name: each.refresh.name for each in self.derivations for name in each.results}

    def refresh(self) -> None:
        """Computes all derived tensors in their present memory: a CUDA graph may hold its
        address."""
        if not self.derivations:
            return
        with torch.no_grad(), self.bound.with_attributes():
            for each in self.derivations:
                each.refresh.run()
            for binding in list(self.bound.rebound()):
                new = binding.current()
                old = binding.data
                if new is None or (new.shape, new.dtype) != (old.shape, old.dtype):
                    raise UnsupportedError(f"'{binding.name}' has another shape or type now")
                binding.restore()
                binding.data.copy_(new)
            for attribute in self.bound.rebound_attributes():
                new = attribute.current()
                if not attribute.fits(new):
                    raise UnsupportedError(f"'{attribute.name}' has another shape or type now")
                attribute.tensor.copy_(new)
                attribute.restore()


def derive(
    bound: BoundTensors, plan: Plan, trace: Trace, refreshes: Sequence[Refresh]
) -> tuple[Derived, dict[str, str]]:
    """Tries the refreshes. If only the loader computes something from a tensor, the plan leaves
    that tensor to the loader. Second result: the tensors that cannot be followed, with the
    reason."""
    goes_to: dict[int, set[str]] = defaultdict(set)
    for name, copies in trace.copies.items():
        for copy in copies:
            goes_to[copy.storage].add(name)
    by_name = {storage.name: key for key, storage in bound.storages.items()}
    for name, parameters in trace.parameters.items():
        for parameter in parameters:
            if parameter in by_name:
                goes_to[by_name[parameter]].add(name)
    derived, refused = Derived(bound), dict[str, str]()
    for refresh in refreshes:
        each = _probe(bound, refresh)
        sources = each.sources & goes_to.keys()
        each.results -= {bound.storages[key].name for key in goes_to}  # views of a parameter
        if not sources or not (each.results or each.problem):
            continue
        names = set().union(*(goes_to[key] for key in sources))
        if each.problem is None:
            derived.derivations.append(each)
            for name in names:
                first = min(each.results)
                plan.notes.setdefault(name, f"'{first}' is computed again from it")
            continue
        for name in names:
            parameter = bound.storages[min(sources)].name
            refused[name] = f"{each.refresh.name}() reads '{parameter}', and {each.problem}"
    for name, attributes in trace.derived.items():
        left = attributes - derived.names.keys()
        if left and name not in refused:
            plan.demote(name, f"the loader computes '{min(left)}' from it")
    explained = set(derived.names).union(*trace.derived.values())
    for copy_name, source in unexplained_copies(bound, goes_to, explained, trace):
        for name in source.tensors:
            why = f"'{copy_name}' is a copy of '{source.name}', and no known function"
            refused.setdefault(name, f"{why} computes it again")
    return derived, refused


def _probe(bound: BoundTensors, refresh: Refresh) -> Derivation:
    probe = _Probe(bound)
    problem = None
    try:
        probe.run(refresh.run)
        results = probe.names()
        changed = probe.changed(but=())
        if changed is not None:
            problem = f"would change '{changed}' if it were run again"
    except Exception as error:
        results = set()
        text = str(error).split("\n")[0][:200]
        problem = f"cannot be run again ({type(error).__name__}: {text})"
    finally:
        probe.undo()
    return Derivation(refresh, probe.reads, results, problem)
