# SPDX-License-Identifier: Apache-2.0
"""The elements that a rank owns of a parameter's shard, as blocks of Hugging Face tensors.

A flat range of a shard (the part that one data-parallel rank's optimizer updates) is divided into
boxes of the tensors that the shard belongs to. Each box is contiguous in the shard, so it is read
in place. Computed once, from the plan's regions; needs neither torch nor Megatron.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import NamedTuple

from .errors import MapError
from .plan import HfTensor, Item
from .regions import Region

Box = tuple[tuple[int, ...], tuple[int, ...]]  # offset, sizes


class Block(NamedTuple):
    tensor: HfTensor
    offset: tuple[int, ...]
    sizes: tuple[int, ...]
    begin: int  # of its contiguous range, in elements of the shard

    @property
    def end(self) -> int:
        return self.begin + prod(self.sizes)


def blocks_of(item: Item, piece: int, begin: int, end: int) -> Iterator[Block]:
    """The blocks of elements [begin, end) of the item's shard number `piece`. Rows that belong to
    no tensor (padding of the vocabulary) are in no block."""
    for tensor in item.tensors:
        for region in tensor.regions:
            if region.piece == piece:
                yield from _of_region(tensor, region, begin, end)


def _of_region(tensor: HfTensor, region: Region, begin: int, end: int) -> Iterator[Block]:
    if len(region.shape) == 1:
        yield from _flat(tensor, region.src_offset, region.dst_offset, region.count, begin, end)
        return
    runs, run = region.shape
    if region.src_strides[0] == run:  # contiguous in the shard: a box of columns
        yield from _columns(tensor, region, begin, end)
        return
    for number in range(runs):
        src = region.src_offset + number * region.src_strides[0]
        dst = region.dst_offset + number * region.dst_strides[0]
        yield from _flat(tensor, src, dst, run, begin, end)


def _flat(
    tensor: HfTensor, src: int, dst: int, count: int, begin: int, end: int
) -> Iterator[Block]:
    """The blocks of a run that is contiguous in the shard and in the tensor."""
    first, last = max(src, begin), min(src + count, end)
    for at, (offset, sizes) in _boxes(tensor.shape, dst + first - src, dst + last - src):
        yield Block(tensor, offset, sizes, at - dst + src)


def _columns(tensor: HfTensor, region: Region, begin: int, end: int) -> Iterator[Block]:
    width = tensor.shape[-1]
    if len(tensor.shape) != 2 or region.dst_strides[0] != width:
        raise MapError(f"{tensor.name}: {region} is not a box of a tensor of {tensor.shape}")
    row, column = divmod(region.dst_offset, width)
    first = max(region.src_offset, begin) - region.src_offset
    last = min(region.src_offset + region.count, end) - region.src_offset
    for at, (offset, sizes) in _boxes(region.shape, first, last):
        yield Block(tensor, (row + offset[0], column + offset[1]), sizes, region.src_offset + at)


def _boxes(shape: tuple[int, ...], begin: int, end: int) -> Iterator[tuple[int, Box]]:
    """Elements [begin, end) of a tensor as boxes, each with the index of its first element: the
    rest of a row, whole rows, the start of a row."""
    if begin >= end:
        return
    row = prod(shape[1:])
    if len(shape) == 1:
        yield begin, ((begin,), (end - begin,))
        return
    while begin < end:
        number, inside = divmod(begin, row)
        rows = 0 if inside else (end - begin) // row
        stop = begin + rows * row if rows else min(end, (number + 1) * row)
        if rows:
            yield begin, ((number, *([0] * len(shape[1:]))), (rows, *shape[1:]))
        else:
            for at, (offset, sizes) in _boxes(shape[1:], inside, inside + stop - begin):
                yield begin - inside + at, ((number, *offset), (1, *sizes))
        begin = stop
