# SPDX-License-Identifier: Apache-2.0
"""The shards that verl's training engines hand out, as a source for `Publisher`: driftless.verl."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from ._native import CheckpointSource, TensorSpec
from .sharded import Shard
from .torch import shard_of, unstack
from .torch_dtypes import dtype_name

Boxes = list[tuple[list[int], list[int]] | None]


class EngineShards:
    """What verl's training engine hands out of this rank's shards, as a source. Each pass asks the
    engine anew, and one tensor is held at a time."""

    def __init__(self, engine: Any, base: CheckpointSource, tied: frozenset[str]) -> None:
        self._engine, self._base, self._tied = engine, base, tied
        self._specs: list[TensorSpec] = []
        self._boxes: Boxes = []

    @classmethod
    def of(
        cls, engine: Any, base: CheckpointSource, tied: frozenset[str]
    ) -> EngineShards | None:
        """None, on all ranks alike, if the engine hands out none, or others than the base has: then
        its whole tensors are what it means."""
        if engine is None or getattr(engine, "_qat_enabled", False):  # quantized: whole ones only
            return None
        made = cls(engine, base, tied)
        try:
            return made if made._learn() else None
        except (NotImplementedError, AssertionError):  # how verl says that it has no such export
            return None

    def _learn(self) -> bool:
        there = {spec.name: spec for spec in self._base.tensors()}
        fits = True
        for shard in self._all():
            spec = None if shard is None else there.get(shard.name)
            if (
                shard is None
                or spec is None
                or tuple(spec.shape) != tuple(shard.shape)
                or spec.dtype != dtype_name(shard.tensor.dtype)
            ):
                fits = False
            elif _publishes(shard):
                sizes = list(shard.tensor.shape)
                self._specs.append(spec)
                whole = sizes == list(shard.shape)
                self._boxes.append(None if whole else (list(shard.offset), sizes))
        return fits

    def tensors(self) -> list[TensorSpec]:
        return self._specs

    def boxes(self) -> Boxes:
        return self._boxes

    def visit(self) -> Iterator[list[tuple[int, Any]]]:
        mine = (shard for shard in self._all() if shard is not None and _publishes(shard))
        for number, shard in enumerate(mine):
            yield [(number, shard.tensor.to("cpu").contiguous())]

    def of_base(self) -> _BaseShards:
        return _BaseShards(self._base, self._specs, self._boxes)

    def _all(self) -> Iterator[Shard | None]:
        """None: one that only verl can translate."""
        given, _ = self._engine.get_per_tensor_param_shard()
        for name, local, spec in given:
            if name in self._tied:
                continue
            if spec.to_hf_chunk is not None or spec.place is not None:
                yield None
                continue
            shard = shard_of(name, _as_parameter(local, spec))
            if spec.hf_slots is None:
                yield shard
            else:
                yield from unstack(shard, [name for name, _ in spec.hf_slots].__getitem__)


class _BaseShards:
    """The same boxes of the base."""

    def __init__(
        self,
        base: CheckpointSource,
        specs: list[TensorSpec],
        boxes: Boxes,
    ) -> None:
        self._base, self._specs, self._boxes = base, specs, boxes

    def tensors(self) -> list[TensorSpec]:
        return self._specs

    def boxes(self) -> Boxes:
        return self._boxes

    def visit(self) -> Iterator[list[tuple[int, Any]]]:
        for number, (spec, box) in enumerate(zip(self._specs, self._boxes, strict=True)):
            tensor = self._base.tensor(spec.name).torch()
            if box is not None:
                for dimension, (begin, size) in enumerate(zip(*box, strict=True)):
                    tensor = tensor.narrow(dimension, begin, size)
            yield [(number, tensor.contiguous())]


def _publishes(shard: Shard) -> bool:
    return shard.owner and 0 not in shard.tensor.shape


def _as_parameter(local: torch.Tensor, spec: Any) -> torch.Tensor:
    """verl hands shards out flat, with the mesh and the placements of what they were cut from."""
    if spec.mesh is None:
        return local.detach().view(spec.full_shape)
    whole = torch.empty(spec.full_shape, device="meta")
    sizes, _ = compute_local_shape_and_global_offset(whole.shape, spec.mesh, spec.placements)
    return DTensor.from_local(
        local.detach().view(sizes), spec.mesh, spec.placements,
        run_check=False, shape=whole.shape, stride=whole.stride(),
    )  # fmt: skip


def tied_names(base: CheckpointSource) -> frozenset[str]:
    """What a state_dict() of tied embeddings has, and the base has not: the same tensor again."""
    config = Path(base.path, "config.json")
    known = json.loads(config.read_text()) if config.is_file() else {}
    tied = known.get("tie_word_embeddings", known.get("text_config", {}).get("tie_word_embeddings"))
    names = {"lm_head.weight"} if tied else set()
    return frozenset(names - {spec.name for spec in base.tensors()})
