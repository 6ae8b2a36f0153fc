# SPDX-License-Identifier: Apache-2.0
"""Strided regions that map a rank's shard to tensors, computed once from shapes alone.

A region copies `shape` elements; offsets and strides count elements of the shard (`src`) and of the
whole Hugging Face tensor (`dst`). Nothing here needs torch: regions can translate indices as well
as copy tensors.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from .errors import MapError


@dataclass(frozen=True)
class Region:
    piece: int  # index of the parameter's shard
    shape: tuple[int, ...]
    src_offset: int
    src_strides: tuple[int, ...]
    dst_offset: int
    dst_strides: tuple[int, ...]

    @property
    def count(self) -> int:
        return prod(self.shape)


@dataclass(frozen=True)
class Shards:
    """A parameter split over several ranks: the shape of one shard, and, for each of its HF
    tensors, the tensor's shape and the regions that fill it."""

    local_shape: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...]
    regions: tuple[tuple[Region, ...], ...]


def _flat(piece: int, count: int, src: int, dst: int) -> Region:
    return Region(piece, (count,), src, (1,), dst, (1,))


def _part(size: int, shards: int, what: str) -> int:
    if size % shards:
        raise MapError(f"{what}: {size} cannot be divided among {shards} ranks")
    return size // shards


def whole(shape: tuple[int, ...]) -> Shards:
    return Shards(shape, (shape,), ((_flat(0, prod(shape), 0, 0),),))


def rows(shape: tuple[int, ...], shards: int, what: str) -> Shards:
    part, row = _part(shape[0], shards, what), prod(shape[1:])
    regions = tuple(_flat(t, part * row, 0, t * part * row) for t in range(shards))
    return Shards((part, *shape[1:]), (shape,), (regions,))


def columns(shape: tuple[int, ...], shards: int, what: str) -> Shards:
    height, width = shape
    part = _part(width, shards, what)
    regions = tuple(
        Region(t, (height, part), 0, (part, 1), t * part, (width, 1)) for t in range(shards)
    )
    return Shards((height, part), (shape,), (regions,))


def vocab(shape: tuple[int, ...], shards: int, padded: int) -> Shards:
    """Splits `padded` rows; rows beyond the vocabulary belong to no tensor."""
    part, row = padded // shards, prod(shape[1:])
    regions = []
    for t in range(shards):
        count = min(shape[0] - t * part, part)
        if count > 0:
            regions.append(_flat(t, count * row, 0, t * part * row))
    return Shards((part, *shape[1:]), (shape,), (tuple(regions),))


def gate_up(shape: tuple[int, ...], shards: int, what: str) -> Shards:
    """Each shard has its part of the first tensor, then its part of the second."""
    part, row = _part(shape[0], shards, what), prod(shape[1:])
    size = part * row
    halves = tuple(
        tuple(_flat(t, size, half * size, t * size) for t in range(shards)) for half in (0, 1)
    )
    return Shards((2 * part, *shape[1:]), (shape, shape), halves)


def qkv(
    heads: int, groups: int, head_dim: int, tail: tuple[int, ...], shards: int, what: str
) -> Shards:
    """Rows per query group: its query heads, then k, then v. A shard is a contiguous slice of all
    rows, also if there are more shards than groups."""
    queries = _part(heads, groups, f"{what}: query heads") * head_dim
    sizes = (queries, head_dim, head_dim)
    starts = (0, queries, queries + head_dim)
    group_rows = queries + 2 * head_dim
    part, row = _part(groups * group_rows, shards, what), prod(tail)
    shapes, regions = [], []
    for size, start in zip(sizes, starts, strict=True):
        runs: dict[int, list[tuple[int, int, int]]] = {}  # shard: (src row, dst row, rows)
        for group in range(groups):
            _cut(runs, group * group_rows + start, group * size, size, part)
        shapes.append((groups * size, *tail))
        regions.append(tuple(r for t in sorted(runs) for r in _regular(t, runs[t], row)))
    return Shards((part, *tail), tuple(shapes), tuple(regions))


def _cut(
    runs: dict[int, list[tuple[int, int, int]]], src: int, dst: int, count: int, part: int
) -> None:
    """Splits a run of rows at the ends of shards."""
    while count:
        shard, inside = divmod(src, part)
        here = min(count, part - inside)
        runs.setdefault(shard, []).append((inside, dst, here))
        src, dst, count = src + here, dst + here, count - here


def _regular(piece: int, runs: list[tuple[int, int, int]], row: int) -> list[Region]:
    """One region for equal runs at equal distances; otherwise one region per run."""
    src, dst, count = runs[0]
    if len(runs) > 1:
        src_step, dst_step = runs[1][0] - src, runs[1][1] - dst
        expected = [(src + i * src_step, dst + i * dst_step, count) for i in range(len(runs))]
        if runs == expected:
            shape = (len(runs), count * row)
            strides = (src_step * row, 1), (dst_step * row, 1)
            return [Region(piece, shape, src * row, strides[0], dst * row, strides[1])]
    return [_flat(piece, n * row, s * row, d * row) for s, d, n in runs]
