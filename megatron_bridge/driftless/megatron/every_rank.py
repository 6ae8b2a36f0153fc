# SPDX-License-Identifier: Apache-2.0
"""Every rank publishes the changes of its own optimizer: no gather, no copy of the weights.

A rank owns a flat range of each parameter's shard; `blocks.py` divides it into boxes of Hugging
Face tensors, each read in place. Just before the optimizer writes new values, the publisher gets
them, and keeps the changes. This works with the optimizers of `optimizers.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

import driftless

from ..sharded import Boxes, Shard, ShardedSource
from ..torch_dtypes import dtype_name
from . import binding, optimizers
from .blocks import blocks_of
from .errors import SyncError
from .export import Bound
from .plan import StagePlan
from .topology import Groups, RankFacts, Sizes, Stage

T = TypeVar("T")

# Weights of attention that qk_clip scales.
_CLIPPED = ("linear_qkv.weight", "linear_q_proj.weight", "linear_q_up_proj.weight",
            "linear_kv_up_proj.weight")  # fmt: skip


@dataclass
class _Written:
    """A block, and where the optimizer keeps its new values in fp32."""

    number: int  # index in the source's tensors
    main: torch.Tensor
    begin: int
    end: int
    values: driftless.TensorRef | None = None
    address: int = 0  # of `main`, when `values` was made as a view of it

    def now(self) -> driftless.TensorRef:
        """The current values: an optimizer's state may be moved to the host and back."""
        if self.values is None or self.main.data_ptr() != self.address:
            self.address = self.main.data_ptr()
            values = self.main.detach().view(-1)[self.begin : self.end]
            self.values = driftless.TensorRef(values)
        return self.values


class _LiveBlocks(ShardedSource):
    """Blocks of parameters that every step compares in place, without conversion. `check` makes
    sure that the parameters were not moved."""

    def __init__(self, shards: Sequence[Shard], check: Callable[[], None]) -> None:
        super().__init__(shards)
        self._check = check
        self._refs = [(n, driftless.TensorRef(s.tensor)) for n, s in enumerate(shards)]

    def visit(self) -> Iterator[list[tuple[int, Any]]]:
        self._check()
        if self._refs:
            yield self._refs


class EveryRank:
    """This rank's part in publishing, with the same interface as SourceRanks."""

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
        self._clipped = getattr(binding.unwrap(model[0]).config, "qk_clip", False)
        self._shards: list[Shard] = []
        self._written: dict[int, list[_Written]] = {}  # optimizer number -> blocks
        self._addresses: list[tuple[str, torch.Tensor, int]] = []  # of the parameters
        self._captured: list[torch.Tensor] = []  # parameters without `watched`
        self._writes: list[int] | None = None  # torch's counters of in-place writes to them
        for one in bound:
            self._add(one, owned)
        self.source: ShardedSource | None = None

    def start(self, groups: Groups, bucket_bytes: int) -> None:
        self.source = _LiveBlocks(self._shards, self._check_places)

    @property
    def live(self) -> ShardedSource | None:
        """The blocks that are read in place, instead of being compared with a snapshot."""
        return self.source

    @property
    def boxes(self) -> Boxes:
        assert self.source is not None
        return self.source.boxes()

    def sync(self) -> None:
        """Nothing to do: this rank's own part is up to date when the step returns."""

    def run(self, work: Callable[[Any], T]) -> T:
        return work(self.source)

    def new_values(self, child: int) -> list[tuple[int, driftless.TensorRef]]:
        """The values that an optimizer is about to write: (index in the source, values) per
        block."""
        return [(each.number, each.now()) for each in self._written.get(child, ())]

    def count_writes(self) -> None:
        """Notes the write counters, while the weights are those of a version."""
        self._writes = [parameter._version for parameter in self._captured]

    def others_wrote(self) -> bool:
        """Whether other code than the optimizer wrote a parameter in place since count_writes(),
        for example a checkpoint load. Call it before the optimizer's first copy to the parameters.
        It does not detect writes through `.data`."""
        before, self._writes = self._writes, None
        return before not in (None, [parameter._version for parameter in self._captured])

    def _check_places(self) -> None:
        for name, parameter, address in self._addresses:
            if parameter.data_ptr() != address:
                raise SyncError(
                    f"rank {self._facts.rank}: {name} was at {address:#x} when weight updates were "
                    f"attached, and is at {parameter.data_ptr():#x} now: attach() again after "
                    "parameters were moved, or use --update-weight-snapshot pinned"
                )

    def _add(self, bound: Bound, owned: dict[torch.Tensor, optimizers.Owned]) -> None:
        item = bound.item
        for piece, shard in enumerate(bound.shards):
            if shard is None:
                continue
            part = owned.get(shard) or self._unwritten(bound, piece, shard)
            if not part.owner:
                continue
            self._addresses.append((item.names[0], shard, shard.data_ptr()))
            if not self._written_elsewhere(item.names[0], shard):
                self._captured.append(shard)
            flat = shard.detach().view(-1)
            for block in blocks_of(item, piece, part.begin, part.end):
                local = flat[block.begin : block.end].view(block.sizes)
                watched = self._written_elsewhere(item.names[0], shard)
                if part.main is not None and part.child is not None and not watched:
                    first = part.main_begin + block.begin - part.begin
                    self._written.setdefault(part.child, []).append(
                        _Written(len(self._shards), part.main, first, first + local.numel())
                    )
                place = block.tensor.shape, block.offset
                self._shards.append(Shard(block.tensor.name, local, *place, watched=watched))

    def _written_elsewhere(self, name: str, tensor: torch.Tensor) -> bool:
        """Whether code outside of the optimizer writes it: the router's bias, or qk_clip."""
        clipped = self._clipped and any(part in name for part in _CLIPPED)
        return clipped or not isinstance(tensor, torch.nn.Parameter)

    def _unwritten(self, bound: Bound, piece: int, shard: torch.Tensor) -> optimizers.Owned:
        """Ownership of a shard that this rank's optimizer does not write. If the parameter is
        trained, other ranks own it. If not (frozen parameters, buffers), every data-parallel rank
        has a copy, and the first one owns it."""
        kind = bound.item.places[piece][0]
        first = (self._facts.edp if kind == "expert" else self._facts.dp) == 0
        return optimizers.Owned(0, shard.numel(), first and not shard.requires_grad)
