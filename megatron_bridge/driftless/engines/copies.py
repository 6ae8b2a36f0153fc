# SPDX-License-Identifier: Apache-2.0
"""Finds copies of parameters by their values. An engine may keep a copy of a parameter, of the part
that one checkpoint tensor fills, or of several parameters together; and it may convert, transpose
or split the copy."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

import torch

from .bound import BoundTensors, storage_key
from .tracing import Trace

# Tensors with fewer elements or fewer distinct values may be equal by chance.
_FEWEST_ELEMENTS, _FEWEST_VALUES = 16, 8
_PART = 1 << 22  # elements per step
# Limits of the search for fused copies: sources per copy, and sources of one owner.
_MOST_FUSED, _MOST_NEAR = 4, 16

Mark = tuple[int, int, int]  # count, and two sums of the values that ignore their order


@dataclass
class Source:
    """A parameter or a part of one, and the checkpoint tensors that fill it."""

    name: str
    tensors: set[str]
    held: torch.Tensor
    whole: bool

    @cached_property
    def mark(self) -> Mark | None:
        return _mark(self.held)


def unexplained_copies(
    bound: BoundTensors, goes_to: dict[int, set[str]], explained: Container[str], trace: Trace
) -> Iterator[tuple[str, Source]]:
    """Yields (a tensor that no checkpoint tensor fills, a source that it copies). A tensor that
    copies several sources of one owner together is in several pairs."""
    sources = _sources(bound, goes_to, trace)
    alone: dict[int, list[list[Source]]] = defaultdict(list)  # elements -> sources
    for source in sources:
        alone[source.held.numel()].append([source])
    largest = max(alone, default=0)
    with bound.with_attributes():
        for owner, candidates in _candidates(bound, goes_to, trace).items():
            fused = _fused([s for s in sources if s.whole and s.name.startswith(owner)])
            marks: list[tuple[str, Mark]] = []
            for name, tensor in candidates:
                groups = [*alone.get(tensor.numel(), ()), *fused.get(tensor.numel(), ())]
                small = tensor.numel() <= largest
                if name in explained or not (groups or small) or not _recognizable(tensor):
                    continue
                mark = _mark(tensor)
                if mark is not None and small:
                    marks.append((name, mark))
                for found in _alike(mark, groups):
                    yield name, found
            if len(marks) > 1:
                together = _sum([mark for _, mark in marks])
                for found in _alike(together, alone.get(together[0], ())):
                    yield marks[0][0], found


def _sources(bound: BoundTensors, goes_to: dict[int, set[str]], trace: Trace) -> list[Source]:
    tensors = {storage_key(each.data): each.data for each in bound.bindings}
    sources = [
        Source(bound.storages[key].name, names, tensors[key], True)
        for key, names in goes_to.items()
        if key in tensors
    ]
    for name, copies in trace.copies.items():
        for copy in copies:
            view, storage = copy.target, bound.storages[copy.storage]
            if copy.storage in tensors and view.units < tensors[copy.storage].numel():
                flat = storage.flat(copy.dtype)
                held = flat.as_strided(view.shape, view.strides, view.offset)
                sources.append(Source(copy.parameter, {name}, held, False))
    return sources


def _candidates(
    bound: BoundTensors, goes_to: dict[int, set[str]], trace: Trace
) -> dict[str, list[tuple[str, torch.Tensor]]]:
    """Tensors that no checkpoint tensor fills, by the prefix of their owner's names."""
    found: dict[str, list[tuple[str, torch.Tensor]]] = defaultdict(list)
    for attribute in bound.attributes:
        if storage_key(attribute.tensor) in bound.beside:
            owner = attribute.name.removesuffix(".".join(map(str, attribute.path)))
            found[owner].append((attribute.name, attribute.tensor))
    for each in bound.bindings:
        key = storage_key(each.data)
        if key not in goes_to and key not in trace.hooks:
            found[each.name.removesuffix(each.attribute)].append((each.name, each.data))
    return found


def _fused(near: list[Source]) -> dict[int, list[list[Source]]]:
    """Groups of sources, by their total number of elements."""
    groups: dict[int, list[list[Source]]] = defaultdict(list)
    for count in range(2, _MOST_FUSED + 1) if len(near) <= _MOST_NEAR else ():
        for some in combinations(near, count):
            groups[sum(each.held.numel() for each in some)].append(list(some))
    return groups


def _alike(mark: Mark | None, groups: Iterable[list[Source]]) -> list[Source]:
    """The first group with these values."""
    for group in groups:
        marks = [each.mark for each in group]
        known = [each for each in marks if each is not None]
        if len(known) == len(group) and _sum(known) == mark:
            return group
    return []


def _recognizable(tensor: torch.Tensor) -> bool:
    """Whether the tensor has enough distinct values to be recognized."""
    flat = tensor.detach().reshape(-1)
    some = flat[:4096].cpu().float().unique()
    return flat.numel() >= _FEWEST_ELEMENTS and some.numel() >= _FEWEST_VALUES


def _mark(tensor: torch.Tensor) -> Mark | None:
    """None: the tensor cannot be recognized by its values."""
    flat = tensor.detach().reshape(-1)
    sums = [0, 0]
    for part in flat.split(_PART):
        if part.is_floating_point() and part.element_size() <= 4:
            part = part.float().view(torch.int32)
        elif part.is_floating_point() or part.is_complex():
            return None
        words = part.to(torch.int64)
        mixed = (words ^ (words >> 13)) * 0x9E3779B97F4A7C1
        sums[0] = (sums[0] + int(words.sum())) & (2**64 - 1)
        sums[1] = (sums[1] + int((mixed ^ (mixed >> 29)).sum())) & (2**64 - 1)
    return flat.numel(), sums[0], sums[1]


def _sum(marks: Sequence[Mark]) -> Mark:
    elements, first, second = (sum(column) for column in zip(*marks, strict=True))
    return elements, first & (2**64 - 1), second & (2**64 - 1)
