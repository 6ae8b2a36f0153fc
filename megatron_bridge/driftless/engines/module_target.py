# SPDX-License-Identifier: Apache-2.0
"""ModuleTarget: a torch module whose parameters follow a run.

docs/develop/module_target.md tells how a way is chosen for each tensor, and what each costs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from os import PathLike, fspath
from typing import Any

import torch

from .. import _native
from ..errors import UnsupportedError
from ..torch_dtypes import dtype_name
from .bound import BoundTensors
from .loader_writer import LoaderWriter
from .planning import Plan, guard, make_plan
from .tracing import Copy, LoadWeights, Trace, View, trace_loader
from .ways import Way, WayName

DEFAULT_CHUNK_BYTES = 512 << 20


class ModuleTarget(_native.MappedTarget):
    """The parameters and buffers of `module`, which holds the checkpoint at `base` as it was loaded
    from there. `version` is what that checkpoint is of its run (None: of no run yet, a full
    version comes first); `load_weights`, by default the
    module's own, takes (name, tensor) pairs in the checkpoint's names. `base_digest` is the
    checkpoint's where it is known; else the files are read once. `allow` leaves ways out.

    Nothing of the module is changed here. stage() of a receiver may run while the module works;
    commit() and rollback() may not.
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
        allow: Collection[WayName] = ("direct", "plan", "masked", "whole"),
    ) -> None:
        source = _native.CheckpointSource(fspath(base))
        layout = source.layout
        bound = BoundTensors.of(module)
        load = load_weights or getattr(module, "load_weights", None)
        trace = trace_loader(load, bound, layout.tensors) if load else _by_names(bound, layout)
        plan = make_plan(trace, bound, layout)

        def base_tensor(name: str) -> torch.Tensor:
            return source.tensor(name).torch()

        guard(plan, base_tensor)
        writer = LoaderWriter(bound, load, layout, base_tensor, chunk_bytes)
        plan.restrict(allow)
        device = plan.device()
        refused = writer.prove(plan, trace)
        self.ways: dict[str, Way] = _ways(plan, trace, layout, refused)
        self._bound = bound
        maps = [
            (
                name,
                each.storage.address,
                dtype_name(each.copy.dtype),
                each.native,
                each.copy.parameter,
            )
            for name, each_map in plan.maps.items()
            for each in each_map
        ]
        super().__init__(
            layout,
            maps,
            external=writer.names(),
            refused=refused,
            writer=writer,
            owners=bound,
            run=run,
            version=version,
            digest=base_digest or _digest_of(source, threads),
            threads=threads,
            device=_gpu_number(device),
        )

    def describe(self) -> str:
        """How many tensors go which way, and those that do not go by maps, with the reason."""
        counts = Counter(way.way for way in self.ways.values())
        lines = [", ".join(f"{count} {way}" for way, count in sorted(counts.items()))]
        alike: dict[tuple[str, str], list[str]] = {}
        for name, way in self.ways.items():
            if way.way not in ("direct", "plan") or way.reason:
                alike.setdefault((way.way, way.reason), []).append(name)
        for (kind, reason), names in alike.items():
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            lines.append(f"  {kind:8} {names[0]}{more}: {reason or '-'}")
        return "\n".join(lines)


def _gpu_number(device: torch.device | None) -> int | None:
    if device is None or device.type == "cpu":
        return None
    if device.type != "cuda":
        raise UnsupportedError(f"parameters on {device}: only cpu and cuda are supported")
    return device.index if device.index is not None else torch.cuda.current_device()


def _digest_of(source: Any, threads: int) -> str:
    """Of the whole checkpoint: what the run's base must have."""
    return _native.digest(
        ((spec.name, source.tensor(spec.name)) for spec in source.tensors()), threads
    )


def _by_names(bound: BoundTensors, layout: Any) -> Trace:
    """A module without a loader: its tensors are those of the same names."""
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
    """A whole tensor of the same type and shape, in memory that is all its own."""
    units = planned.storage.size_bytes // planned.copy.dtype.itemsize
    same = dtype_name(planned.copy.dtype) == spec.dtype and planned.native.dims <= 1
    return same and planned.native.units == spec.units == units
