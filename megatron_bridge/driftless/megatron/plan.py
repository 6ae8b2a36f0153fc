# SPDX-License-Identifier: Apache-2.0
"""The static plan: which Megatron parameters a pipeline stage holds, which of its ranks holds which
shard, and which tensors they become. Made once, from a model's configuration and the numbers of
ranks; needs neither torch nor Megatron.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from . import regions
from .errors import MapError
from .maps import Family, Row, family_of
from .regions import Region, Shards

# A rank's place in its stage, for parameters of one kind: ("dense", tp, 0) or
# ("expert", etp, ep).
Place = tuple[str, int, int]

# The attribute names, newest first, of the decoder layer in a layer of multi-token prediction.
_MTP_BLOCKS = ("mtp_model_layer", "transformer_layer")


@dataclass(frozen=True)
class Parallel:
    tp: int = 1
    pp: int = 1
    ep: int = 1
    etp: int | None = None  # None: as tp
    vpp: int = 1  # model chunks per stage
    spec: str = "te"  # names of parameters: TransformerEngine's ("te") or local
    vocab_divisor: int = 128  # make_vocab_size_divisible_by
    padded_vocab: int | None = None  # None: computed from vocab_divisor

    @property
    def expert_tp(self) -> int:
        return self.tp if self.etp is None else self.etp


@dataclass(frozen=True)
class HfTensor:
    name: str
    shape: tuple[int, ...]
    regions: tuple[Region, ...]  # `piece` is an index in the item's places


@dataclass(frozen=True)
class Item:
    """One Megatron parameter, on all ranks of the stage that hold a shard of it."""

    chunk: int  # index of the stage's model chunk
    names: tuple[str, ...]  # in the chunk; the first is that of the chosen specification
    split: str
    dtype: str | None  # None: the parameters' dtype
    local_shape: tuple[int, ...]
    places: tuple[Place, ...]
    tensors: tuple[HfTensor, ...]


@dataclass(frozen=True)
class StagePlan:
    stage: int
    chunks: tuple[tuple[int, ...], ...]  # global numbers of each chunk's layers
    items: tuple[Item, ...]
    dropped: frozenset[tuple[int, str]] = field(default_factory=frozenset)

    def tensors(self) -> list[HfTensor]:
        return [tensor for item in self.items for tensor in item.tensors]


@dataclass(frozen=True)
class ChunkLayers:
    """The contents of a model chunk."""

    layers: tuple[int, ...]  # global numbers
    embedding: bool
    output: bool  # final norm and output layer
    mtp: tuple[int, ...] = ()  # numbers of its multi-token prediction layers


def even_chunks(family: Family, parallel: Parallel) -> list[list[ChunkLayers]]:
    """Stages with equal numbers of layers, which is Megatron's default."""
    layers, pp, vpp = family.sizes["layers"], parallel.pp, parallel.vpp
    if layers % (pp * vpp):
        raise MapError(f"{layers} layers cannot be divided among {pp} stages of {vpp} chunks")
    each = layers // (pp * vpp)
    stages = []
    for stage in range(pp):
        chunks = []
        for chunk in range(vpp):
            first = chunk * (layers // vpp) + stage * each
            last = stage == pp - 1 and chunk == vpp - 1
            mtp = tuple(range(family.sizes.get("mtp_layers", 0))) if last else ()
            numbers = tuple(range(first, first + each))
            chunks.append(ChunkLayers(numbers, stage == 0 and chunk == 0, last, mtp))
        stages.append(chunks)
    return stages


def plan_model(config: Mapping[str, Any], parallel: Parallel) -> list[StagePlan]:
    """Every stage's plan; raises unless together they are the whole model."""
    family = family_of(config)
    plans = [
        plan_stage(family, parallel, stage, chunks)
        for stage, chunks in enumerate(even_chunks(family, parallel))
    ]
    check_complete(plans)
    return plans


def plan_stage(
    family: Family, parallel: Parallel, stage: int, chunks: Sequence[ChunkLayers]
) -> StagePlan:
    if family.sizes.get("experts", 0) % parallel.ep:
        raise MapError(
            f"{family.sizes['experts']} experts cannot be divided among {parallel.ep} ranks"
        )
    items: list[Item] = []
    dropped: set[tuple[int, str]] = set()
    for number, chunk in enumerate(chunks):
        builder = _Builder(family, parallel, number)
        builder.add_chunk(chunk)
        items += builder.items
        dropped |= {(number, name) for name in builder.dropped}
    return StagePlan(stage, tuple(c.layers for c in chunks), tuple(items), frozenset(dropped))


class _Builder:
    def __init__(self, family: Family, parallel: Parallel, chunk: int) -> None:
        self.family, self.parallel, self.chunk = family, parallel, chunk
        self.items: list[Item] = []
        self.dropped: set[str] = set()

    def add_chunk(self, chunk: ChunkLayers) -> None:
        for row in self.family.rows:
            if row.scope == "model" and self._in_chunk(row, chunk):
                self._add(row, ("",), "")
        for local, layer in enumerate(chunk.layers):
            self._add_block((f"decoder.layers.{local}.",), layer)
        if chunk.mtp and not chunk.embedding:  # a copy of the embedding for multi-token prediction
            self.dropped.add("embedding.word_embeddings.weight")
        for local, number in enumerate(chunk.mtp):
            layer = self.family.sizes["layers"] + number
            for row in self.family.rows:
                if row.scope == "mtp":
                    self._add(row, (f"mtp.layers.{local}.",), f"model.layers.{layer}.")
            self._add_block(tuple(f"mtp.layers.{local}.{b}." for b in _MTP_BLOCKS), layer)

    @staticmethod
    def _in_chunk(row: Row, chunk: ChunkLayers) -> bool:
        name = row.megatron["local"]
        return chunk.embedding if name.startswith("embedding.") else chunk.output

    def _add_block(self, prefixes: tuple[str, ...], layer: int) -> None:
        moe = layer in self.family.moe_layers
        scopes = ("layer", "moe_layer" if moe else "dense_layer")
        hf_prefix = f"model.layers.{layer}."
        for row in self.family.rows:
            if row.scope in scopes:
                self._add(row, prefixes, hf_prefix)
        if not moe:
            return
        for expert in range(self.family.sizes["experts"]):
            for row in self.family.rows:
                if row.scope == "expert":
                    self._add(row, prefixes, hf_prefix, expert)

    def _add(
        self, row: Row, prefixes: tuple[str, ...], hf_prefix: str, expert: int | None = None
    ) -> None:
        spec = self.parallel.spec
        order = [row.megatron[spec], *(n for s, n in row.megatron.items() if s != spec)]
        names = tuple(dict.fromkeys(prefix + name for name in order for prefix in prefixes))
        if row.drop:
            self.dropped |= set(names)
            return
        places = self._places(row.split[spec], expert)
        if expert is not None:
            local = expert % (self.family.sizes["experts"] // self.parallel.ep)
            names = tuple(name.format(expert=local) for name in names)
        shards = self._shards(row, row.split[spec], len(places), names[0])
        hf = [hf_prefix + name.format(expert=expert) for name in row.hf]
        tensors = tuple(map(HfTensor, hf, shards.shapes, shards.regions))
        self.items.append(
            Item(self.chunk, names, row.split[spec], row.dtype, shards.local_shape, places, tensors)
        )

    def _places(self, split: str, expert: int | None) -> tuple[Place, ...]:
        if expert is None:
            count = 1 if split == "whole" else self.parallel.tp
            return tuple(("dense", rank, 0) for rank in range(count))
        ep_rank = expert // (self.family.sizes["experts"] // self.parallel.ep)
        count = 1 if split == "whole" else self.parallel.expert_tp
        return tuple(("expert", rank, ep_rank) for rank in range(count))

    def _shards(self, row: Row, split: str, shards: int, what: str) -> Shards:
        shape = tuple(self.family.size(expression) for expression in row.shape)
        if split == "qkv":
            sizes = self.family.sizes
            return regions.qkv(
                sizes["heads"], sizes["groups"], sizes["head_dim"], shape, shards, what
            )
        if split == "vocab":
            multiple = self.parallel.vocab_divisor * self.parallel.tp
            padded = self.parallel.padded_vocab or -(-shape[0] // multiple) * multiple
            if padded < shape[0] or padded % shards:
                raise MapError(f"{what}: {padded} padded rows for a vocabulary of {shape[0]}")
            return regions.vocab(shape, shards, padded)
        if split == "whole":
            return regions.whole(shape)
        cut = {"rows": regions.rows, "columns": regions.columns, "gate_up": regions.gate_up}
        return cut[split](shape, shards, what)


def check_complete(plans: Sequence[StagePlan]) -> None:
    """Raises unless every tensor has one owner, and the owner fills every element once."""
    owner: dict[str, int] = {}
    for plan in plans:
        for tensor in plan.tensors():
            if tensor.name in owner:
                raise MapError(
                    f"{tensor.name} comes from stage {owner[tensor.name]} and from {plan.stage}"
                )
            owner[tensor.name] = plan.stage
            size = prod(tensor.shape)
            filled = sum(region.count for region in tensor.regions)
            if filled != size:
                raise MapError(f"{tensor.name}: {filled} of {size} elements have a place")
