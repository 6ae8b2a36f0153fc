# SPDX-License-Identifier: Apache-2.0
"""The shards of one rank of a sharded trainer, as a source for `Publisher`: any sharding, no
gather."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ._native import CheckpointSource, TensorRef, TensorSpec
from .errors import InvalidArgumentError

BUCKET_BYTES = 64 << 20  # visit() yields a batch once it has this much

_SCALES = "_scale_inv"  # suffix of the name of a quantized tensor's scales
_PACKED = "_packed"  # suffix of the codes of an INT4 tensor, which has scales and a shape beside them
_OF_PACKED = (_PACKED, "_scale", "_shape")

Boxes = list[tuple[list[int], list[int]] | None]


class Shard(NamedTuple):
    """One rank's box of a tensor."""

    name: str  # the tensor's name in the engine's checkpoint
    tensor: Any  # the box that this rank holds
    shape: Sequence[int]  # of the whole tensor
    offset: Sequence[int]  # of the box in the whole tensor
    owner: bool = True  # whether this rank publishes it; one of several replicas does
    watched: bool = False  # with snapshot: none: code other than the optimizer writes it


class ShardedSource:
    """`shards`: (name, local tensor, full shape, offset, owner), as in Shard. The shards of all
    ranks together must cover every element: opening a run refuses gaps, and tensors that no rank
    owns. If several ranks hold the same box, the lowest rank publishes it, and all must hold the
    same bits; any other overlap is refused. If this rank holds several boxes of a tensor (parts of
    a fused one), each is a shard. Every publish() reads the tensors in place, so one object serves
    all steps of parameters that are updated in place."""

    def __init__(self, shards: Iterable[Sequence[Any]], bucket_bytes: int = BUCKET_BYTES) -> None:
        self._bucket_bytes = bucket_bytes
        self._shards, self._others = parted(shards)

    def shards(self) -> Sequence[Shard]:
        """The shards that this rank publishes."""
        return self._shards

    def dtype(self, shard: Shard) -> str:
        """The dtype, as safetensors spells it."""
        return TensorRef(shard.tensor).dtype

    def ready(self, shard: Shard) -> Any:
        """The tensor to read: contiguous, of dtype()."""
        return shard.tensor

    def tensors(self) -> list[TensorSpec]:
        return [TensorSpec(s.name, self.dtype(s), list(s.shape)) for s in self.shards()]

    def boxes(self) -> Boxes:
        """For each of tensors(), (offsets, sizes) of this rank's box; None: the whole tensor."""
        return [
            None if tuple(s.tensor.shape) == tuple(s.shape) else (list(s.offset), _sizes(s))
            for s in self.shards()
        ]

    def watched(self) -> list[bool]:
        return [s.watched for s in self.shards()]

    def left_to_others(self) -> list[str]:
        """Tensors that only other ranks publish, as of the last shards()."""
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
    """The boxes that a source offers, read from a checkpoint: the publisher opens with them."""

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
    """The boxes that a source offers, for a publisher that reads the checkpoint by itself: with FP8
    blocks, the checkpoint's tensors differ from the source's. Nothing is looked up in the
    checkpoint before it is needed."""

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
    """Whether the config.json of a checkpoint declares it as quantized."""
    return _quantization(directory) is not None


def has_groups(directory: str | os.PathLike[str]) -> bool:
    """Whether the config.json of a checkpoint declares groups in INT4."""
    found = _quantization(directory)
    return isinstance(found, dict) and found.get("quant_method") == "compressed-tensors"


def _quantization(directory: str | os.PathLike[str]) -> Any:
    try:
        config = json.loads((Path(directory) / "config.json").read_text())
    except (OSError, ValueError):
        return None
    if not isinstance(config, dict):
        return None
    keys = ("quantization_config", "compression_config")
    return next((config[key] for key in keys if config.get(key) is not None), None)


def trained_types(base: CheckpointSource) -> dict[str, str]:
    """The dtypes that a trainer must offer for a quantized checkpoint, by name: bfloat16 for tensors
    that have scales in the checkpoint. The scales themselves are left out."""
    there = {spec.name: spec.dtype for spec in base.tensors()}
    scaled = {name for name in there if name + _SCALES in there}
    packed = {name.removesuffix(_PACKED) for name in there if name.endswith(_PACKED)}
    made = {name + _SCALES for name in scaled}
    made |= {name + suffix for name in packed for suffix in _OF_PACKED}
    offered = {name: dtype for name, dtype in there.items() if name not in made}
    return offered | dict.fromkeys(scaled | packed, "BF16")


def _of_base(base: CheckpointSource, spec: TensorSpec, box: Any) -> Shard:
    """The files are mapped: nothing is read before it is used."""
    tensor = base.tensor(spec.name).torch()
    offset, sizes = box or ([0] * tensor.dim(), tensor.shape)
    for dimension, (begin, size) in enumerate(zip(offset, sizes, strict=True)):
        tensor = tensor.narrow(dimension, begin, size)
    return Shard(spec.name, tensor, spec.shape, offset)


def parted(shards: Iterable[Sequence[Any]]) -> tuple[list[Shard], list[str]]:
    """The shards that this rank publishes, and the names of the others. Raises if a shard exceeds
    its tensor. Empty tensors are published too, because engines have them."""
    ours: list[Shard] = []
    others: dict[str, None] = {}
    for shard in map(_checked, shards):
        if shard.owner and (0 not in _sizes(shard) or 0 in shard.shape):
            ours.append(shard)
        else:
            others[shard.name] = None
    published = {shard.name for shard in ours}
    return ours, [name for name in others if name not in published]


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
