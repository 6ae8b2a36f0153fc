# SPDX-License-Identifier: Apache-2.0
"""Gathers Hugging Face tensors from a trainer's shards, bucket by bucket.

The source rank of a pipeline stage walks the stage's plan. For each bucket the other holders send
their shards, and the source assembles the tensors by strided copies. At most two buckets are held
beside the model itself. The other holders call `serve()`, which returns when the source ends it.
Tensors are copied bit by bit; nothing is computed.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, TypeAlias

import torch
import torch.distributed as dist

import driftless

from ..torch_dtypes import dtype_name
from .errors import SyncError
from .plan import Item
from .topology import Groups, Stage

_ALIGN = 16  # alignment of a shard in a message, for every element size

_PASS, _END = 1, 0  # commands of the source to the holders

# An item's shard in this process; None: another rank holds it.
Shard: TypeAlias = "torch.Tensor | None"


@dataclass
class Times:
    """Seconds since the last `take()`."""

    gather: float = 0.0  # waiting for shards of other ranks
    convert: float = 0.0  # assembling tensors
    use: float = 0.0  # in the consumer of the tensors
    passes: int = 0

    def take(self) -> Times:
        now = replace(self)
        vars(self).update(vars(Times()))
        return now


@dataclass(frozen=True)
class Bound:
    """An item with this rank's shards of it."""

    item: Item
    dtype: torch.dtype
    holders: tuple[int, ...]  # global rank, per place
    shards: tuple[Shard, ...]  # per place

    @property
    def shard_bytes(self) -> int:
        return self.dtype.itemsize * prod(self.item.local_shape)

    @property
    def room(self) -> int:
        return -(-self.shard_bytes // _ALIGN) * _ALIGN


@dataclass
class _Bucket:
    bound: list[Bound] = field(default_factory=list)
    first_tensor: int = 0
    sends: dict[int, int] = field(default_factory=dict)  # other holder -> bytes that it sends


class StageExport:
    """One stage's tensors. The source calls tensors(), visit() and finish(); the other holders call
    serve(). All make the same number of calls. Not thread-safe."""

    def __init__(
        self,
        bound: list[Bound],
        stage: Stage,
        groups: Groups,
        bucket_bytes: int,
        device: torch.device,
    ) -> None:
        self._stage, self._groups, self._device = stage, groups, device
        self.rank = dist.get_rank()
        self.times = Times()
        self._pass: Generator[list[tuple[int, torch.Tensor]], None, None] | None = None
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._buckets = _buckets(bound, stage.source, bucket_bytes)
        self.specs = [
            driftless.TensorSpec(tensor.name, dtype_name(b.dtype), list(tensor.shape))
            for b in bound
            for tensor in b.item.tensors
        ]

    def tensors(self) -> list[Any]:
        return self.specs

    def visit(self) -> Generator[list[tuple[int, torch.Tensor]], None, None]:
        """[source] Makes one pass over the stage."""
        self._pass = self._walk()
        return self._pass

    def _walk(self) -> Generator[list[tuple[int, torch.Tensor]], None, None]:
        self._send_command(_PASS)
        self.times.passes += 1
        later = iter(self._buckets[1:])
        coming = self._receive(self._buckets[0]) if self._buckets else {}
        try:
            for bucket in self._buckets:
                messages = self._arrived(coming)
                following = next(later, None)
                coming = self._receive(following) if following else {}
                batch = self._assemble(bucket, messages)
                begin = time.perf_counter()
                yield batch
                self.times.use += time.perf_counter() - begin
                del messages, batch
        except _LostHolder:
            raise
        except BaseException:
            # The consumer stopped early. The holders send the rest of the pass nevertheless.
            self._arrived(coming)
            for bucket in later:
                self._arrived(self._receive(bucket))
            raise

    def finish(self) -> None:
        """[source] Ends serve() on the other holders."""
        if self._pass is not None:
            self._pass.close()
            self._pass = None
        self._send_command(_END)

    def serve(self) -> None:
        """[other holders] Sends shards for each pass of the source, until finish()."""
        while self._receive_command() == _PASS:
            self.times.passes += 1
            self._send_pass()

    # --- commands --------------------------------------------------------------------------------

    def _send_command(self, word: int) -> None:
        if self._groups.control is not None:
            command = torch.tensor([word], dtype=torch.int64)
            dist.broadcast(command, self._stage.source, group=self._groups.control)

    def _receive_command(self) -> int:
        command = torch.zeros(1, dtype=torch.int64)
        dist.broadcast(command, self._stage.source, group=self._groups.control)
        return int(command)

    # --- shards ----------------------------------------------------------------------------------

    def _send_pass(self) -> None:
        sent: list[tuple[Any, torch.Tensor]] = []
        for bucket in self._buckets:
            size = bucket.sends.get(self.rank, 0)
            if size == 0:
                continue
            message = self._pack(bucket, size)
            work = dist.isend(message, self._stage.source, group=self._groups.data)
            sent.append((work, message))
            while len(sent) > 2:
                sent.pop(0)[0].wait()
        for work, _ in sent:
            work.wait()

    def _pack(self, bucket: _Bucket, size: int) -> torch.Tensor:
        message = torch.empty(size, dtype=torch.uint8, device=self._device)
        at = 0
        for bound in bucket.bound:
            for holder, shard in zip(bound.holders, bound.shards, strict=True):
                if holder == self.rank and shard is not None:
                    message[at : at + bound.shard_bytes].copy_(_bytes(shard))
                    at += bound.room
        return message

    def _receive(self, bucket: _Bucket) -> dict[int, tuple[Any, torch.Tensor]]:
        coming = {}
        for holder, size in bucket.sends.items():
            message = torch.empty(size, dtype=torch.uint8, device=self._device)
            coming[holder] = dist.irecv(message, holder, group=self._groups.data), message
        return coming

    def _arrived(self, coming: dict[int, tuple[Any, torch.Tensor]]) -> dict[int, torch.Tensor]:
        begin = time.perf_counter()
        messages = {}
        for holder, (work, message) in coming.items():
            try:
                work.wait()
            except RuntimeError as failure:
                raise _LostHolder(
                    f"stage {self._stage.number}: received no shards from rank {holder}: "
                    f"{failure}"
                ) from failure
            messages[holder] = message
        self.times.gather += time.perf_counter() - begin
        return messages

    # --- tensors ---------------------------------------------------------------------------------

    def _assemble(
        self, bucket: _Bucket, messages: Mapping[int, torch.Tensor]
    ) -> list[tuple[int, torch.Tensor]]:
        begin = time.perf_counter()
        at = dict.fromkeys(messages, 0)
        index, batch = bucket.first_tensor, []
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream), torch.no_grad():
            for bound in bucket.bound:
                shards: list[torch.Tensor] = []
                for holder, shard in zip(bound.holders, bound.shards, strict=True):
                    if holder != self.rank:
                        start = at[holder]
                        shard = messages[holder][start : start + bound.shard_bytes].view(
                            bound.dtype
                        )
                        at[holder] += bound.room
                    assert shard is not None
                    shards.append(shard.detach().reshape(-1))
                for tensor in bound.item.tensors:
                    batch.append((index, self._tensor(tensor, bound.dtype, shards)))
                    index += 1
        if self._stream is not None:
            self._stream.synchronize()
        self.times.convert += time.perf_counter() - begin
        return batch

    def _tensor(self, tensor: Any, dtype: torch.dtype, shards: list[torch.Tensor]) -> torch.Tensor:
        first = tensor.regions[0]
        if len(tensor.regions) == 1 and len(first.shape) == 1 and first.dst_offset == 0:
            # The tensor is contiguous in one shard: no copy.
            part = shards[first.piece][first.src_offset : first.src_offset + first.count]
            return part.view(tensor.shape)
        made = torch.empty(tensor.shape, dtype=dtype, device=self._device)
        for region in tensor.regions:
            src = shards[region.piece].as_strided(
                region.shape, region.src_strides,
                shards[region.piece].storage_offset() + region.src_offset)  # fmt: skip
            made.as_strided(region.shape, region.dst_strides, region.dst_offset).copy_(src)
        return made


class _LostHolder(SyncError):
    """A rank of the stage did not send: there is no point in waiting for the rest."""


def _bytes(shard: torch.Tensor) -> torch.Tensor:
    return shard.detach().contiguous().reshape(-1).view(torch.uint8)


def _buckets(bound: list[Bound], source: int, bucket_bytes: int) -> list[_Bucket]:
    """Groups items in order into buckets of up to `bucket_bytes`; an item is never divided."""
    buckets: list[_Bucket] = []
    size = tensors = 0
    for one in bound:
        item_bytes = one.room * len(one.holders)
        if not buckets or size + item_bytes > bucket_bytes:
            buckets.append(_Bucket(first_tensor=tensors))
            size = 0
        bucket = buckets[-1]
        bucket.bound.append(one)
        for holder in one.holders:
            if holder != source:
                bucket.sends[holder] = bucket.sends.get(holder, 0) + one.room
        size += item_bytes
        tensors += len(one.item.tensors)
    return buckets
