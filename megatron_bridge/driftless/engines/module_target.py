# SPDX-License-Identifier: Apache-2.0
"""ModuleTarget: a torch module whose parameters follow a run.

docs/develop/module_target.md explains how a way is chosen for each tensor, and what each way costs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike, fspath
from typing import Any

import torch

from .. import _native
from ..errors import MismatchError, UnsupportedError
from ..torch_dtypes import dtype_name
from .bound import BoundTensors, View, storage_key
from .derived import Refresh, derive, find_refreshes
from .load_layout import LoadLayout, beside_quantized, reload_groups, unloaded
from .loader_writer import LoaderWriter
from .loaders import Loaders
from .moves import Moves, Placement
from .planning import Plan, guard_swapped, make_plan, swap
from .tracing import Copy, LoadWeights, Trace
from .ways import Way, WayName

DEFAULT_CHUNK_BYTES = 512 << 20
# For a tensor that is stored in several places: units compared per step.
BLOCK_UNITS = 1 << 20


@dataclass
class _Made:
    """The result of a trace: how the module loads, and how its tensors are written."""

    bound: BoundTensors
    trace: Trace
    plan: Plan
    writer: LoaderWriter
    refused: dict[str, str] = field(default_factory=dict)


class ModuleTarget(_native.MappedTarget):
    """The parameters and buffers of `module`, which was loaded from the checkpoint at `base` and
    still holds it. `version`: the version of that checkpoint in its run (None: it belongs to no
    run, and the first update is a full version). `load_weights` takes (name, tensor) pairs under
    the checkpoint's names; default: the module's own. `base_digest`: the checkpoint's digest, if
    known; otherwise the files are read once. `allow`: the ways that may be used.

    `drafters`: modules that draft for `module`, by name; the checkpoint tensors that they take are
    committed together with the module's. `refreshes`: functions of the engine that compute tensors
    from loaded parameters; default: those that the modules have (derived.py). `placement`: returns
    the engine's placement of experts, if the modules themselves do not have it. `load_layout`: how
    the engine changes parameters after loading (load_layout.py). `rank`: the engine's, for
    messages.

    Construction changes nothing in the module. stage() of a receiver may run while the module
    works; commit(), rollback() and follow() may not.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        base: str | PathLike[str],
        run: str | None = None,
        version: int | None = 0,
        load_weights: LoadWeights | None = None,
        chunk_bytes: int = DEFAULT_CHUNK_BYTES,
        threads: int = 0,
        base_digest: str | None = None,
        allow: Collection[WayName] = ("direct", "plan", "masked", "whole", "reload"),
        drafters: Mapping[str, torch.nn.Module] | None = None,
        refreshes: Sequence[Refresh] | None = None,
        placement: Placement | None = None,
        load_layout: LoadLayout | None = None,
        rank: int | None = None,
    ) -> None:
        self._source = _native.CheckpointSource(fspath(base))
        self._layout = self._source.layout
        self._modules = [("", module), *(drafters or {}).items()]
        self._load_layout = load_layout or LoadLayout()
        self._loaders = Loaders(module, load_weights, drafters or {}, self._load_layout)
        self._swapped: set[str] = set()  # parameters whose halves the engine swapped
        self._refreshes = find_refreshes(self._modules) if refreshes is None else refreshes
        self._placement, self._allow, self._base_version = placement, allow, version
        self._chunk_bytes, self._threads, self._rank = chunk_bytes, threads, rank
        self._followed = False
        made = self._trace()
        self._prove(made)
        # One digest per tensor: a run may publish fewer tensors than the checkpoint has.
        digests = [] if base_digest else _digests_of(self._source, self._layout, threads)
        self._base_digest = base_digest or _native.add_digests(digests)
        super().__init__(**self._arguments(made), run=run, version=version,
                         digest=self._base_digest, digests=digests)  # fmt: skip

    # --- how tensors are written -----------------------------------------------------------------

    def _base(self, name: str) -> torch.Tensor:
        return self._source.tensor(name).torch()

    def _trace(self) -> _Made:
        bound = BoundTensors.of(*self._modules)
        specs = self._layout.tensors
        has_loader = self._loaders.model is not None
        if has_loader:
            bound.stand_ins = self._loaders.stand_ins
            trace = self._loaders.trace(bound, specs, self._base)
        else:
            trace = _by_names(bound, self._layout)
        self._note_unwritable(trace, bound)
        plan = make_plan(trace, bound, self._layout)
        swap(plan, bound, self._layout, self._swapped)
        writer = LoaderWriter(
            bound, self._loaders.load, self._layout, self._base, self._chunk_bytes,
            self._load_layout.reloads if "reload" in self._allow else None,
        )  # fmt: skip
        return _Made(bound, trace, plan, writer)

    def _note_unwritable(self, trace: Trace, bound: BoundTensors) -> None:
        unwritable = {**beside_quantized(bound, trace), **self._load_layout.unwritable()}
        for parameter, why in unwritable.items():
            names = [name for name, into in trace.parameters.items() if parameter in into]
            trace.problem(names, f"'{parameter}': {why}", parameter)
            trace.changed |= set(names)
            trace.unwritable |= dict.fromkeys(names, f"'{parameter}': {why}")
        empty = unloaded(bound, trace, tuple(f"{name}." for name in self._loaders.drafters))
        if empty is not None:
            why = f"the loader copies it nowhere, and no checkpoint tensor fills '{empty}'"
            lost = {spec.name for spec in self._layout.tensors} - trace.problems.keys()
            lost -= {name for name, copies in trace.copies.items() if copies}
            trace.unwritable |= dict.fromkeys(lost, why)

    def _prove(self, made: _Made) -> None:
        """Tries every way with the base's values, while the module holds the base."""
        self._swapped |= guard_swapped(made.plan, made.bound, self._layout, self._base)
        made.writer.derived, made.refused = derive(
            made.bound, made.plan, made.trace, self._refreshes
        )
        made.plan.restrict(self._allow)
        made.plan.device()
        self._leave_to_engine(made)
        self._refuse_unwritable(made)
        made.refused |= made.writer.prove(made.plan, made.trace)

    def _leave_to_engine(self, made: _Made) -> None:
        """Modules that do not hold the loaded values: the engine loads them again."""
        reloads, plan = self._load_layout.reloads, made.plan
        if reloads is None or "reload" not in self._allow:
            return
        changed = [name for name in plan.whole if name in plan.changed | plan.reload.keys()]
        for group in reload_groups(changed, made.trace, made.bound, reloads):
            if not made.refused.keys().isdisjoint(group.names):
                continue  # a derived tensor that no reload computes again
            why = made.writer.take_group(group)
            first = f"a part of {', '.join(group.modules)} is not as it was loaded"
            for name in group.names:
                reason = self._advised(plan.leave(name) or first, made.trace.parameters[name])
                if why is None:
                    plan.reload[name] = reason
                else:
                    made.refused[name] = f"{reason}; {why}"

    @staticmethod
    def _refuse_unwritable(made: _Made) -> None:
        for name in made.trace.unwritable.keys() - made.plan.reload.keys():
            made.plan.leave(name)
            made.refused.setdefault(name, made.trace.unwritable[name])

    def _advised(self, reason: str, parameters: Collection[str]) -> str:
        advice = next(filter(None, map(self._load_layout.advice, sorted(parameters))), "")
        return f"{reason}; to write in place: {advice}" if advice else reason

    def _arguments(self, made: _Made) -> dict[str, Any]:
        """Arguments of the native target, which follows `made` from here on."""
        self.ways: dict[str, Way] = _ways(made.plan, made.trace, self._layout, made.refused)
        self._made = made
        followed = {copy.storage for copies in made.trace.copies.values() for copy in copies}
        followed |= {
            storage_key(each.data)
            for each in made.bound.bindings
            if any(each.name in names for names in made.trace.parameters.values())
        }
        moves = Moves(made.bound, self._modules, followed, self._placement)
        self._moves = made.writer.moves = moves
        self.unpublished = [
            each.name
            for each in made.bound.bindings
            if each.is_parameter
            and storage_key(each.data) not in followed
            and each.name not in made.writer.derived.names
        ]
        # A run may publish fewer tensors than the checkpoint has.
        layout = (self.layout if self._followed else None) or self._layout
        self._followed = True
        published = {spec.name for spec in layout.tensors}
        maps = [
            (
                name,
                each.storage.address,
                dtype_name(each.copy.dtype),
                each.native,
                each.copy.parameter,
            )
            for name, each_map in made.plan.maps.items()
            if name not in made.refused
            for each in each_map
        ]
        return {
            "layout": layout,
            "maps": [each for each in maps if each[0] in published],
            "external": [
                name
                for name in made.writer.names()
                if name not in made.refused and name in published
            ],
            "refused": {name: why for name, why in made.refused.items() if name in published},
            "writer": made.writer,
            "owners": made.bound,
            "threads": self._threads,
            "device": _gpu_number(made.plan.device()),
            "rank": self._rank,
            "only_rule": self._only_rule(each[4] for each in maps),
        }

    def _only_rule(self, parameters: Iterable[str]) -> str:
        """The rule by which versions must be quantized, so that they can be written in place."""
        rules = sorted({self._load_layout.only_rule(each) for each in set(parameters)} - {""})
        if len(rules) > 1:
            raise UnsupportedError(f"the engine needs several quantization rules at once: {rules}")
        return rules[0] if rules else ""

    # --- EngineTarget (target.py) ----------------------------------------------------------------

    unread = ""

    @property
    def native(self) -> Any:
        return self

    def written(self) -> None:
        """Nothing to do: the engine computes with these weights."""

    # --- changes by the engine -------------------------------------------------------------------

    def note_sleep(self, level: int) -> None:
        self._moves.sleeps(level)

    def note_wake(self) -> None:
        self._moves.asleep = None

    @property
    def reads(self) -> bool:
        """Whether staging has begun to read the weights since this was set to False."""
        return self._made.writer.reads

    @reads.setter
    def reads(self, value: bool) -> None:
        self._made.writer.reads = value

    def sweep(self) -> Any:
        """As in every target; refused while the engine's weights are not in place."""
        self._moves.check_places()
        return super().sweep()

    def look(self) -> Any:
        self._moves.check_places()
        return super().look()

    def vouch(self) -> None:
        """The caller guarantees that the module holds what it held before the last foreign
        write."""
        self._moves.remember()

    def follow(self, digests: Mapping[str, str] | None = None) -> list[str]:
        """Checks whether the engine moved or wrote its tensors (moves.py). If so, traces them
        again, and returns what was found. The target then holds the version that the weights are
        proven to be: the one before, or the base's. If they are neither, the next version must be a
        full one. `digests`: of the version's tensors, to prove tensors that this target did not
        hold before. The module must not work, and no staging may run, during the call."""
        found = self._moves.found()
        if not found.what or self._moves.asleep is not None:
            self._moves.check()  # raises if it sleeps
            return []
        if self._moves.lost() and self.unpublished:
            raise MismatchError(
                f"{found.what[0]}; the run does not publish '{self.unpublished[0]}', so no version "
                "restores it: reload the engine's weights first"
            )
        state, before = self.state, self._made
        made = self._trace()
        other = _unlike(made.plan, before.plan)
        if other:
            found.what.append(f"the loader puts '{other}' elsewhere now")
        # False: the places changed, but not the values.
        suspect = found.everything or bool(found.storages) or other is not None
        if not (
            self._holds_tracked(made, before, state, digests or {}, suspect)
            or self._holds_base(state)
        ):
            made = self._trace()
            self._inherit(made, before)
            self._replace(made, state.run, None, None)
        return found.what

    def _replace(self, made: _Made, run: Any, version: int | None, digest: str | None) -> None:
        self.replace(**self._arguments(made), run=run, version=version, digest=digest)

    def _inherit(self, made: _Made, before: _Made) -> None:
        """The module does not hold the base, so no way can be tried again: tensors that were left
        to the loader stay with it."""
        for name in (*before.plan.whole, *before.plan.masked, *before.plan.reload):
            made.plan.leave(name)
        made.plan.whole |= before.plan.whole
        made.plan.masked |= before.plan.masked
        made.plan.reload |= before.plan.reload
        made.refused = dict(before.refused)
        self._refuse_unwritable(made)
        for name in (*made.plan.whole, *made.plan.masked):
            if name not in before.plan.whole and name not in before.plan.masked:
                made.refused[name] = "a new trace of the loader found no maps for it"
        made.plan.notes = {**before.plan.notes, **made.plan.notes}
        made.writer.inherit(before.writer, made.trace)

    def _holds_tracked(
        self,
        made: _Made,
        before: _Made,
        state: Any,
        digests: Mapping[str, str],
        suspect: bool,
    ) -> bool:
        """Whether the weights are still the version before. For each tensor, the share must have
        the same sum as before, or the sum must be the whole tensor's digest, and all copies must
        agree. `suspect`: tensors that cannot be read back may have changed."""
        if not state.valid:
            return False
        tracked = self.tracked()
        if tracked[1] and suspect:
            return False
        self._inherit(made, before)
        try:
            self._replace(made, state.run, state.version, state.digest)
        except MismatchError:
            return False
        known = {name: (region, digest) for name, _, region, digest in tracked[0]}
        sizes = {spec.name: spec.units for spec in (self.layout or self._layout).tensors}
        tensors, unproven = self.tracked()
        return unproven == tracked[1] and all(
            known.get(name) == (region, digest)
            or (units == sizes[name] and digests.get(name) == digest)
            for name, units, region, digest in tensors
        ) and self._places_agree(made.plan)

    def _places_agree(self, plan: Plan) -> bool:
        """Whether replicas and tied copies equal the place that a share counts."""
        names = {spec.name for spec in (self.layout or self._layout).tensors}
        return not any(
            self.blocks(name, BLOCK_UNITS)[1]
            for name, maps in plan.maps.items()
            if len(maps) > 1 and name in names
        )

    def _holds_base(self, state: Any) -> bool:
        """Whether the weights equal the base in every unit, and the base is a version."""
        if self._base_version is None:
            return False
        made = self._trace()
        for name, maps in made.plan.maps.items():
            if self.ways[name].way in ("direct", "plan") and maps:
                base = self._base(name)
                if not all(each.copy.holds(each.storage, base) for each in maps):
                    return False
        self._prove(made)
        if any(self.ways[name].way != "refused" for name in made.refused):
            return False
        self._replace(made, state.run, self._base_version, self._base_digest)
        return True

    def describe(self) -> str:
        """The number of tensors per way, and each tensor without a map, with the reason."""
        counts = Counter(way.way for way in self.ways.values())
        lines = [", ".join(f"{count} {way}" for way, count in sorted(counts.items()))]
        alike: dict[tuple[str, str], list[str]] = {}
        for name, way in self.ways.items():
            if way.way not in ("direct", "plan") or way.reason:
                alike.setdefault((way.way, way.reason), []).append(name)
        for (kind, reason), names in alike.items():
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            lines.append(f"  {kind:8} {names[0]}{more}: {reason or '-'}")
        for each in self._made.writer.derived.derivations:
            by = f"computed again by {each.refresh.name}() after each commit"
            lines.append(f"  derived  {', '.join(sorted(each.results))}: {by}")
        for module, _ in self._modules:
            lines += self._describe_rest(module)
        return "\n".join(lines)


    def _describe_rest(self, module: str) -> list[str]:
        """Parameters of the module, or of the named drafter, that no checkpoint tensor fills."""
        drafters = tuple(f"{name}." for name in self._loaders.drafters)
        left = [
            name
            for name in self.unpublished
            if (name.startswith(f"{module}.") if module else not name.startswith(drafters))
        ]
        lines = []
        if module:
            count = len(self._loaders.taken[module])
            lines.append(f"  drafter  {module}: takes {count} tensors of the checkpoint")
        if left:
            more = f" and {len(left) - 1} more" if len(left) > 1 else ""
            lines.append(f"  left     {left[0]}{more}: no tensor of the checkpoint goes there")
        return lines


def _unlike(plan: Plan, before: Plan) -> str | None:
    """A tensor whose maps lead to other places than before, in parameters of the same names."""

    def places(of: Plan, name: str) -> list[Any]:
        return [
            (each.copy.source, each.copy.parameter, each.copy.target, each.copy.dtype)
            for each in of.maps.get(name, ())
        ]

    names = before.maps.keys()
    return next((name for name in names if places(plan, name) != places(before, name)), None)


def _gpu_number(device: torch.device | None) -> int | None:
    if device is None or device.type == "cpu":
        return None
    if device.type != "cuda":
        raise UnsupportedError(f"parameters on {device}: only cpu and cuda are supported")
    return device.index if device.index is not None else torch.cuda.current_device()


def _digests_of(source: Any, layout: Any, threads: int) -> list[str]:
    """One digest per tensor of the checkpoint; their sum is the digest that the run's base must
    have."""
    return [
        _native.digest([(spec.name, source.tensor(spec.name))], threads) for spec in layout.tensors
    ]


def _by_names(bound: BoundTensors, layout: Any) -> Trace:
    """For a module without a loader: tensors and parameters match by name."""
    trace = Trace()
    by_name = {binding.name: binding for binding in bound.bindings}
    for order, spec in enumerate(layout.tensors):
        binding = by_name.get(spec.name)
        if binding is None:
            trace.problem([spec.name], "the module has no such tensor, and no load_weights")
        elif tuple(binding.data.shape) != tuple(spec.shape):
            shape = tuple(binding.data.shape)
            why = f"the module's has shape {shape}, and there is no load_weights"
            trace.problem([spec.name], why, binding.name)
        else:
            storage = bound.find(binding.data)
            assert storage is not None
            whole = torch.empty(spec.shape, device="meta")
            trace.copies[spec.name].append(
                Copy(
                    spec.name,
                    View.of(whole),
                    binding.name,
                    storage.key,
                    View.of(binding.data),
                    binding.data.dtype,
                    order,
                )
            )
            trace.parameters[spec.name].add(binding.name)
    return trace


def _ways(plan: Plan, trace: Trace, layout: Any, refused: dict[str, str]) -> dict[str, Way]:
    ways = {}
    for spec in layout.tensors:
        name = spec.name
        parameter = ", ".join(sorted(trace.parameters.get(name, ())))
        if name in refused:
            ways[name] = Way("refused", refused[name], parameter)
        elif name in plan.reload:
            ways[name] = Way("reload", plan.reload[name], parameter)
        elif name in plan.whole:
            ways[name] = Way("whole", plan.whole[name], parameter)
        elif name in plan.masked:
            ways[name] = Way("masked", plan.masked[name], parameter)
        else:
            maps = plan.maps.get(name, [])
            direct = len(maps) == 1 and _is_direct(maps[0], spec)
            ways[name] = Way("direct" if direct else "plan", plan.notes.get(name, ""), parameter)
    return ways


def _is_direct(planned: Any, spec: Any) -> bool:
    """A whole tensor of the same dtype and shape, in memory that no other tensor uses."""
    units = planned.storage.size_bytes // planned.copy.dtype.itemsize
    same = dtype_name(planned.copy.dtype) == spec.dtype and planned.native.dims <= 1
    return same and planned.native.units == spec.units == units
