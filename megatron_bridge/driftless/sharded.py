# SPDX-License-Identifier: Apache-2.0
"""What one rank of a sharded trainer holds, as a source for `Publisher`: no gather, any sharding."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ._native import CheckpointSource, TensorRef, TensorSpec
from .errors import InvalidArgumentError

BUCKET_BYTES = 64 << 20  # of tensors that visit() holds at a time

_SCALES = "_scale_inv"  # behind a quantized tensor's name: its scales
_PACKED = "_packed"  # the same in INT4: its codes, beside which are its scales and its shape
_OF_PACKED = (_PACKED, "_scale", "_shape")

Boxes = list[tuple[list[int], list[int]] | None]


class Shard(NamedTuple):
    """A rank's part of a tensor."""

    name: str  # the tensor's, as the engine's checkpoint has it
    tensor: Any  # what this rank holds: a box of the whole
    shape: Sequence[int]  # of the whole tensor
    offset: Sequence[int]  # where the box begins
    owner: bool = True  # whether this rank publishes it: of replicas, one does
    watched: bool = False  # snapshot: none: others than Publisher.capture() write it


class ShardedSource:
    """`shards`: (name, local tensor, full shape, offset, owner), as Shard has them. All ranks'
    shards together have every element: gaps are refused when a run is opened, and so is a tensor
    that no rank owns. The same box on several ranks is published by the lowest, and must have the
    same bits; another overlap is refused. Of a tensor of which this rank holds several boxes (parts
    of a fused one), each is a shard. The tensors are read where they are, on every publish(), so one
    object serves all steps of parameters that are updated in place."""

    def __init__(self, shards: Iterable[Sequence[Any]], bucket_bytes: int = BUCKET_BYTES) -> None:
        self._bucket_bytes = bucket_bytes
        self._shards, self._others = parted(shards)

    def shards(self) -> Sequence[Shard]:
        """What this rank publishes."""
        return self._shards

    def dtype(self, shard: Shard) -> str:
        """As safetensors spells it."""
        return TensorRef(shard.tensor).dtype

    def ready(self, shard: Shard) -> Any:
        """What is read of it: contiguous, of dtype()."""
        return shard.tensor

    def tensors(self) -> list[TensorSpec]:
        return [TensorSpec(s.name, self.dtype(s), list(s.shape)) for s in self.shards()]

    def boxes(self) -> Boxes:
        """Of each of tensors(): (offsets, sizes) of what this rank has; None: all of it."""
        return [
            None if tuple(s.tensor.shape) == tuple(s.shape) else (list(s.offset), _sizes(s))
            for s in self.shards()
        ]

    def watched(self) -> list[bool]:
        return [s.watched for s in self.shards()]

    def left_to_others(self) -> list[str]:
        """Tensors of which this rank publishes nothing, as of the last shards()."""
        return self._others

    def visit(self) -> Iterator[list[tuple[int, Any]]]:
        batch: list[tuple[int, Any]] = []
        held = 0
        for number, shard in enumerate(self.shards()):
            tensor = TensorRef(self.ready(shard))
            batch.append((number, tensor))
            held += tensor.size_bytes
            if held >= self._bucket_bytes:
                yield batch
                batch, held = [], 0
        if batch:
            yield batch


class CheckpointShards(ShardedSource):
    """The boxes that a source offers, out of a checkpoint: what its publisher is opened with."""

    def __init__(
        self,
        base: CheckpointSource,
        specs: list[TensorSpec],
        boxes: Boxes,
        others: Sequence[str] = (),
    ) -> None:
        super().__init__(_of_base(base, spec, box) for spec, box in zip(specs, boxes, strict=True))
        self._specs = specs
        self._others = [*others]

    def tensors(self) -> list[TensorSpec]:
        return self._specs

    def ready(self, shard: Shard) -> Any:
        return shard.tensor.contiguous()


class OfferedBoxes:
    """The boxes that a source offers, as CheckpointShards, for a publisher that reads the
    checkpoint by itself: one with FP8 blocks, whose tensors are others. Nothing is looked up in it
    before it is asked for."""

    def __init__(
        self,
        base: CheckpointSource,
        specs: list[TensorSpec],
        boxes: Boxes,
        others: Sequence[str] = (),
    ) -> None:
        self._base, self._specs, self._boxes, self._others = base, specs, boxes, [*others]

    def tensors(self) -> list[TensorSpec]:
        return self._specs

    def boxes(self) -> Boxes:
        return self._boxes

    def left_to_others(self) -> list[str]:
        return self._others

    def visit(self) -> Iterator[list[tuple[int, Any]]]:
        yield from CheckpointShards(self._base, self._specs, self._boxes).visit()


def is_quantized(directory: str | os.PathLike[str]) -> bool:
    """Whether a checkpoint's config.json says that it is."""
    try:
        config = json.loads((Path(directory) / "config.json").read_text())
    except (OSError, ValueError):
        return False
    keys = ("quantization_config", "compression_config")
    return isinstance(config, dict) and any(config.get(key) is not None for key in keys)


def trained_types(base: CheckpointSource) -> dict[str, str]:
    """Which types a trainer offers of a quantized checkpoint, by name: bfloat16 for what has scales
    there, and no scales."""
    there = {spec.name: spec.dtype for spec in base.tensors()}
    scaled = {name for name in there if name + _SCALES in there}
    packed = {name.removesuffix(_PACKED) for name in there if name.endswith(_PACKED)}
    made = {name + _SCALES for name in scaled}
    made |= {name + suffix for name in packed for suffix in _OF_PACKED}
    offered = {name: dtype for name, dtype in there.items() if name not in made}
    return offered | dict.fromkeys(scaled | packed, "BF16")


def _of_base(base: CheckpointSource, spec: TensorSpec, box: Any) -> Shard:
    """The files are mapped: nothing is read before it is asked for."""
    tensor = base.tensor(spec.name).torch()
    offset, sizes = box or ([0] * tensor.dim(), tensor.shape)
    for dimension, (begin, size) in enumerate(zip(offset, sizes, strict=True)):
        tensor = tensor.narrow(dimension, begin, size)
    return Shard(spec.name, tensor, spec.shape, offset)


def parted(shards: Iterable[Sequence[Any]]) -> tuple[list[Shard], list[str]]:
    """Those that this rank publishes, and the names of the others. Raises on one that does not lie
    in its tensor. A tensor without elements is published, too: engines have it."""
    own: list[Shard] = []
    others: dict[str, None] = {}
    for shard in map(_checked, shards):
        if shard.owner and (0 not in _sizes(shard) or 0 in shard.shape):
            own.append(shard)
        else:
            others[shard.name] = None
    published = {shard.name for shard in own}
    return own, [name for name in others if name not in published]


def _sizes(shard: Shard) -> list[int]:
    return [int(size) for size in shard.tensor.shape]


def _checked(entry: Sequence[Any]) -> Shard:
    shard = Shard(*entry)
    sizes = _sizes(shard)
    ends = [begin + size for begin, size in zip(shard.offset, sizes, strict=False)]
    fits = len(sizes) == len(shard.shape) == len(shard.offset) and all(
        begin >= 0 and end <= whole
        for begin, end, whole in zip(shard.offset, ends, shard.shape, strict=True)
    )
    if fits:
        return shard
    raise InvalidArgumentError(
        f"tensor {shard.name!r}: a shard of shape {sizes} at {list(shard.offset)} does not lie in "
        f"a tensor of shape {list(shard.shape)}"
    )
