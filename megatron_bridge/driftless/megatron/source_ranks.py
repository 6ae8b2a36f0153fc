# SPDX-License-Identifier: Apache-2.0
"""One rank of each pipeline stage publishes: the others send it their shards, it puts tensors
together and compares them with a snapshot. For every optimizer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import driftless

from ..sharded import Boxes
from . import binding
from .export import StageExport, Times
from .plan import StagePlan
from .topology import Groups, RankFacts, Stage

T = TypeVar("T")


class SourceRanks:
    """How this rank takes part. [collective over all trainer ranks: all of it]"""

    def __init__(
        self, plan: StagePlan, model: Sequence[Any], stage: Stage, facts: RankFacts
    ) -> None:
        self._model, self._stage, self._rank = model, stage, facts.rank
        self._bound = binding.bind(plan, model, stage, facts.rank)
        self.publishes = facts.rank == stage.source
        self._holds = facts.rank in stage.members
        self.source: StageExport | None = None

    def start(self, groups: Groups, bucket_bytes: int) -> None:
        """Before anything below."""
        if self._holds:
            device = next(binding.unwrap(self._model[0]).parameters()).device
            self.source = StageExport(self._bound, self._stage, groups, bucket_bytes, device)

    live = None  # tensors are put together anew for every version

    def count_writes(self) -> None:
        """Nothing: every tensor is compared with a snapshot."""

    @property
    def specs(self) -> list[driftless.TensorSpec]:
        """Of the stage, as its file of version 0 has them. [ranks that hold shards]"""
        assert self.source is not None
        return self.source.specs

    @property
    def boxes(self) -> Boxes:
        return [None] * len(self.specs)

    def sync(self) -> None:
        """With overlap_param_gather a rank has only its own part of the step's result: the rest is
        fetched now, as it would be by the next forward pass."""
        for chunk in self._model:
            ddp = getattr(chunk, "ddp_config", None)
            if ddp is not None and getattr(ddp, "overlap_param_gather", False):
                chunk.start_param_sync(force_sync=True)

    def run(self, work: Callable[[Any], T]) -> T | None:
        """Runs `work` with the weights on the publishing ranks, while the other holders send what
        it asks for."""
        if self.source is None:
            return None
        if not self.publishes:
            self.source.serve()
            return None
        try:
            return work(self.source)
        finally:
            self.source.finish()

    def times(self) -> Times:
        """Of this rank, since they were last asked for."""
        return Times() if self.source is None else self.source.times.take()
