# SPDX-License-Identifier: Apache-2.0
"""One rank of each pipeline stage publishes: it receives the other ranks' shards, assembles tensors
and compares them with a snapshot. Works with every optimizer."""

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
    """This rank's part in publishing. All methods are collective over all trainer ranks."""

    def __init__(
        self, plan: StagePlan, model: Sequence[Any], stage: Stage, facts: RankFacts
    ) -> None:
        self._model, self._stage, self._rank = model, stage, facts.rank
        self._bound = binding.bind(plan, model, stage, facts.rank)
        self.publishes = facts.rank == stage.source
        self._holds = facts.rank in stage.members
        self.source: StageExport | None = None

    def start(self, groups: Groups, bucket_bytes: int) -> None:
        """Must be called before any other method."""
        if self._holds:
            device = next(binding.unwrap(self._model[0]).parameters()).device
            self.source = StageExport(self._bound, self._stage, groups, bucket_bytes, device)

    live = None  # no tensor is read in place: each version assembles them again

    def count_writes(self) -> None:
        """Nothing to do: every tensor is compared with a snapshot."""

    @property
    def specs(self) -> list[driftless.TensorSpec]:
        """The stage's tensors, as in its file of version 0. [ranks that hold shards]"""
        assert self.source is not None
        return self.source.specs

    @property
    def boxes(self) -> Boxes:
        return [None] * len(self.specs)

    def sync(self) -> None:
        """With overlap_param_gather a rank holds only its own part of the step's result: gathers
        the rest now, which otherwise the next forward pass would do."""
        for chunk in self._model:
            ddp = getattr(chunk, "ddp_config", None)
            if ddp is not None and getattr(ddp, "overlap_param_gather", False):
                chunk.start_param_sync(force_sync=True)

    def run(self, work: Callable[[Any], T]) -> T | None:
        """Runs `work` with the weights on the publishing ranks, while the other holders send their
        shards on request."""
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
        """This rank's times since the last call."""
        return Times() if self.source is None else self.source.times.take()
