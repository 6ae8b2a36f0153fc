# SPDX-License-Identifier: Apache-2.0
"""Every rank publishes what its own optimizer writes: no gather, no copy of the weights.

What a rank owns of a parameter is a flat range of its shard; `blocks.py` cuts it into boxes of
Hugging Face tensors, each read where it lies. For the optimizers of `optimizers.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import torch

import driftless

from ..sharded import Boxes, Shard, ShardedSource
from ..torch_dtypes import dtype_name
from . import binding, optimizers
from .blocks import blocks_of
from .export import Bound, Times
from .plan import StagePlan
from .topology import Groups, RankFacts, Sizes, Stage

T = TypeVar("T")


class OwnedBlocks(ShardedSource):
    """What this rank owns, and the time that the publisher takes with it."""

    def __init__(self, shards: Sequence[Shard], bucket_bytes: int) -> None:
        super().__init__(shards, bucket_bytes)
        self.times = Times()

    def visit(self) -> Iterator[list[tuple[int, Any]]]:
        self.times.passes += 1
        for batch in super().visit():
            begin = time.perf_counter()
            yield batch
            self.times.use += time.perf_counter() - begin


class EveryRank:
    """How this rank takes part, as SourceRanks has it."""

    publishes = True

    def __init__(
        self,
        plan: StagePlan,
        model: Sequence[Any],
        stage: Stage,
        facts: RankFacts,
        sizes: Sizes,
        optimizer: Any,
    ) -> None:
        self._facts = facts
        bound = binding.bind(plan, model, stage.of(facts), facts.rank)
        owned = optimizers.owned(optimizer, facts, sizes)
        self.specs = [
            driftless.TensorSpec(tensor.name, dtype_name(one.dtype), list(tensor.shape))
            for one in bound
            for tensor in one.item.tensors
        ]
        self._shards = [shard for one in bound for shard in self._blocks(one, owned)]
        self.source: OwnedBlocks | None = None

    def start(self, groups: Groups, bucket_bytes: int) -> None:
        self.source = OwnedBlocks(self._shards, bucket_bytes)

    @property
    def boxes(self) -> Boxes:
        assert self.source is not None
        return self.source.boxes()

    def sync(self) -> None:
        """What this rank owns is new when the step returns."""

    def run(self, work: Callable[[Any], T]) -> T:
        return work(self.source)

    def times(self) -> Times:
        assert self.source is not None
        return self.source.times.take()

    def _blocks(
        self, bound: Bound, owned: dict[torch.Tensor, optimizers.Owned]
    ) -> Iterator[Shard]:
        for piece, shard in enumerate(bound.shards):
            if shard is None:
                continue
            part = owned.get(shard) or self._unwritten(bound, piece, shard)
            if not part.owner:
                continue
            flat = shard.detach().reshape(-1)
            for block in blocks_of(bound.item, piece, part.begin, part.end):
                local = flat[block.begin : block.end].view(block.sizes)
                yield Shard(block.tensor.name, local, block.tensor.shape, block.offset)

    def _unwritten(self, bound: Bound, piece: int, shard: torch.Tensor) -> optimizers.Owned:
        """What this rank's optimizer does not write, other ranks' do, if it is trained. Of what is
        not (frozen parameters, buffers) every data-parallel rank has a copy: the first owns it."""
        kind = bound.item.places[piece][0]
        first = (self._facts.edp if kind == "expert" else self._facts.dp) == 0
        return optimizers.Owned(0, shard.numel(), None, first and not shard.requires_grad)
