# SPDX-License-Identifier: Apache-2.0
"""The shards of verl's training engines, as a source for `Publisher` (used by driftless.verl)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from ._native import CheckpointSource, TensorSpec
from .errors import WrongLayoutError
from .sharded import Boxes, CheckpointShards, Shard
from .torch import shard_of, unstack
from .torch_dtypes import dtype_name


class EngineShards:
    """This rank's shards as verl's training engine exports them. Each pass exports them anew, and
    holds one tensor at a time."""

    def __init__(self, engine: Any, base: CheckpointSource, tied: frozenset[str]) -> None:
        self._engine, self._base, self._tied = engine, base, tied
        self._specs: list[TensorSpec] = []
        self._boxes: Boxes = []
        self._others: dict[str, None] = {}

    @classmethod
    def of(cls, engine: Any, base: CheckpointSource, tied: frozenset[str]) -> EngineShards | None:
        """Returns None, on all ranks, if the engine of one exports no shards, or shards that do not
        match the base: verl then sends whole tensors. A failure on one rank fails on all.
        Collective."""
        # quantized: verl exports whole tensors only
        if engine is None or getattr(engine, "_qat_enabled", False):
            return None
        made = cls(engine, base, tied)
        found = _Found()
        try:
            made._learn(found)
        except (NotImplementedError, AssertionError):  # verl's way to refuse this export
            found.fits = False
        except Exception as error:
            found.failure = f"{type(error).__name__}: {error}"
        ranks = _of_all_ranks(found)
        for rank, each in enumerate(ranks):
            if each.failure is not None:
                raise RuntimeError(f"driftless: the shards of rank {rank}: {each.failure}")
        if not all(each.fits for each in ranks):
            return None
        return made

    def _learn(self, found: _Found) -> None:
        there = {spec.name: spec for spec in self._base.tensors()}
        for shard in self._all():
            spec = None if shard is None else there.get(shard.name)
            if (
                shard is None
                or spec is None
                or tuple(spec.shape) != tuple(shard.shape)
                or spec.dtype != dtype_name(shard.tensor.dtype)
            ):
                found.fits = False
                continue
            if not _publishes(shard):
                self._others[shard.name] = None
                continue
            sizes = list(shard.tensor.shape)
            whole = sizes == list(shard.shape)
            self._specs.append(spec)
            self._boxes.append(None if whole else (list(shard.offset), sizes))

    def tensors(self) -> list[TensorSpec]:
        return self._specs

    def boxes(self) -> Boxes:
        return self._boxes

    def visit(self) -> Iterator[list[tuple[int, Any]]]:
        mine = (shard for shard in self._all() if shard is not None and _publishes(shard))
        learnt = [*zip((each.name for each in self._specs), self._boxes, strict=True)]
        for number, shard in enumerate(mine):
            sizes = list(shard.tensor.shape)
            box = None if sizes == list(shard.shape) else (list(shard.offset), sizes)
            if number >= len(learnt) or learnt[number] != (shard.name, box):
                raise WrongLayoutError(
                    f"verl hands out '{shard.name}' {box or 'whole'} as shard {number} of this "
                    f"rank; when the run was opened it was {[*learnt, ('none', None)][number]}"
                )
            yield [(number, shard.tensor.to("cpu").contiguous())]

    def of_base(self) -> CheckpointShards:
        return CheckpointShards(self._base, self._specs, self._boxes, list(self._others))

    def _all(self) -> Iterator[Shard | None]:
        """Yields None for a shard that only verl can translate."""
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


@dataclass
class _Found:
    """The outcome of one rank's look at its engine's shards, sent to all ranks."""

    fits: bool = True  # all of them match the base
    failure: str | None = None


def _of_all_ranks(found: _Found) -> list[_Found]:
    if not dist.is_initialized():
        return [found]
    ranks: list[_Found] = [found] * dist.get_world_size()
    dist.all_gather_object(ranks, found)
    return ranks


def _publishes(shard: Shard) -> bool:
    return shard.owner and (0 not in shard.tensor.shape or 0 in shard.shape)


def _as_parameter(local: torch.Tensor, spec: Any) -> torch.Tensor:
    """verl exports shards flat, with mesh and placements of the original tensor."""
    if spec.mesh is None:
        return local.detach().view(spec.full_shape)
    whole = torch.empty(spec.full_shape, device="meta")
    sizes, _ = compute_local_shape_and_global_offset(whole.shape, spec.mesh, spec.placements)
    return DTensor.from_local(
        local.detach().view(sizes), spec.mesh, spec.placements,
        run_check=False, shape=whole.shape, stride=whole.stride(),
    )  # fmt: skip


def tied_names(base: CheckpointSource) -> frozenset[str]:
    """Names that the state_dict() of tied embeddings has and the base lacks: stored copies."""
    config = Path(base.path, "config.json")
    known = json.loads(config.read_text()) if config.is_file() else {}
    tied = known.get("tie_word_embeddings", known.get("text_config", {}).get("tie_word_embeddings"))
    names = {"lm_head.weight"} if tied else set()
    return frozenset(names - {spec.name for spec in base.tensors()})
