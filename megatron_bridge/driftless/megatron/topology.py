# SPDX-License-Identifier: Apache-2.0
"""Which trainer rank holds which shard, and the process groups of this package.

Collectives of this package use groups made here, so that they never mix with those of training.
Every call is collective over all trainer ranks unless its text says otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from .errors import SyncError
from .plan import Place


@dataclass(frozen=True)
class RankFacts:
    rank: int
    pp: int
    tp: int
    dp: int  # including context parallelism
    ep: int
    etp: int
    edp: int  # data parallelism of experts


@dataclass(frozen=True)
class Sizes:
    tp: int
    pp: int
    ep: int
    etp: int
    dp: int  # including context parallelism
    edp: int


@dataclass(frozen=True)
class Stage:
    """One pipeline stage: its source rank, and the holder of each shard."""

    number: int
    source: int
    holder: dict[Place, int]  # global rank
    members: tuple[int, ...]  # all holders, ascending

    def of(self, facts: RankFacts) -> Stage:
        """The stage for a rank that uses its own shards only: it is the only holder."""
        local = {("dense", facts.tp, 0): facts.rank, ("expert", facts.etp, facts.ep): facts.rank}
        return replace(self, holder={**dict.fromkeys(self.holder, -1), **local})


def my_facts() -> tuple[RankFacts, Sizes]:
    from megatron.core import parallel_state as ps

    facts = RankFacts(
        rank=dist.get_rank(),
        pp=ps.get_pipeline_model_parallel_rank(),
        tp=ps.get_tensor_model_parallel_rank(),
        dp=ps.get_data_parallel_rank(with_context_parallel=True),
        ep=ps.get_expert_model_parallel_rank(),
        etp=ps.get_expert_tensor_parallel_rank(),
        edp=ps.get_expert_data_parallel_rank(),
    )
    sizes = Sizes(
        tp=ps.get_tensor_model_parallel_world_size(),
        pp=ps.get_pipeline_model_parallel_world_size(),
        ep=ps.get_expert_model_parallel_world_size(),
        etp=ps.get_expert_tensor_parallel_world_size(),
        dp=ps.get_data_parallel_world_size(with_context_parallel=True),
        edp=ps.get_expert_data_parallel_world_size(),
    )
    return facts, sizes


def gather_objects(value: Any) -> list[Any]:
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, value)
    return found


def stages_of(facts: list[RankFacts], sizes: Sizes) -> list[Stage]:
    """Each stage's source is the rank with TP rank 0 and DP rank 0. Dense shards come from the
    ranks of its tensor-parallel group, experts from the ranks with its expert data-parallel
    rank."""
    stages = []
    for number in range(sizes.pp):
        here = [f for f in facts if f.pp == number]
        sources = [f for f in here if f.tp == 0 and f.dp == 0]
        if len(sources) != 1:
            raise SyncError(
                f"pipeline stage {number} has {len(sources)} ranks with TP rank 0 and DP rank 0"
            )
        holder: dict[Place, int] = {}
        for f in here:
            if f.dp == 0:
                holder["dense", f.tp, 0] = f.rank
            if f.edp == sources[0].edp:
                holder["expert", f.etp, f.ep] = f.rank
        wanted = sizes.tp + sizes.etp * sizes.ep
        if len(holder) != wanted:
            raise SyncError(
                f"pipeline stage {number}: {len(holder)} of {wanted} shards have a rank"
            )
        stages.append(Stage(number, sources[0].rank, holder, tuple(sorted(set(holder.values())))))
    return stages


class Groups:
    """Our process groups. If the stages' sources publish, `data` moves shards within this rank's
    stage, and `control` moves commands; if every rank publishes, both are None. `publishers` joins
    the publishing ranks. A group is None if this rank is not in it, or is its only member."""

    def __init__(self, stages: list[Stage], timeout_s: float, every_rank: bool) -> None:
        timeout = timedelta(seconds=timeout_s)
        rank = dist.get_rank()
        self.data: dist.ProcessGroup | None = None
        self.control: dist.ProcessGroup | None = None
        self.publishers: dist.ProcessGroup | None = None
        for stage in () if every_rank else stages:
            if len(stage.members) > 1:
                data = dist.new_group(list(stage.members), timeout=timeout)
                control = dist.new_group(list(stage.members), timeout=timeout, backend="gloo")
                if rank in stage.members:
                    self.data, self.control = data, control
        sources = [stage.source for stage in stages]
        if every_rank:
            sources = list(range(dist.get_world_size()))
        if len(sources) > 1:
            group = dist.new_group(sources, timeout=timeout, backend="gloo")
            if rank in sources:
                self.publishers = group
        self.everyone = dist.new_group(timeout=timeout, backend="gloo")
