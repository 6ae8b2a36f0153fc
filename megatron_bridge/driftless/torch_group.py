# SPDX-License-Identifier: Apache-2.0
"""Agreement among publisher ranks that torch.distributed joined: the group of
`driftless.Publisher`.

Messages go through the store of the rendezvous. Their keys have a random name that rank 0 makes for
each group, and the number of the version's attempt. The random name separates them from keys that
an earlier start left in the store (torchrun restarts processes with the same store). Only that name
is sent over the process group: a gloo collective that one rank entered too late never ends, and
would make the group useless for all later versions.

Each rank also writes its attempt number to the store. A rank that waits for one with a later
attempt number fails at once: the other rank left this attempt out, or gave it up.
"""

from __future__ import annotations

import copy
import os
import secrets
import time
from collections.abc import Sequence
from typing import Any

import torch.distributed as dist

from ._native import Waiting, launch
from .errors import DeadlineExceededError, IncompleteError, InvalidArgumentError

_SHORTEST_S, _LONGEST_S = 0.0002, 0.05  # between two polls
_FIRST_ASK_S, _LAST_ASK_S = 0.2, 4.0  # between two reads of the attempt numbers of silent ranks
_STEP_SHIFT = 16  # collectives/group.h: Group::kStepShift


class PublisherGroup:
    """`group`: the ranks that publish; all must construct it together. None: this rank is alone."""

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        self.rank = 0 if group is None else dist.get_rank(group)
        self.size = 1 if group is None else dist.get_world_size(group)
        self._store: Any = _store_of(group) if group is not None and self.size > 1 else None
        self._opened = 0  # publishers made with this group
        self._epoch = self._message = 0
        self._our_keys: list[list[str]] = [[], []]  # of the previous epoch, of this one

    def for_publisher(self) -> PublisherGroup:
        """The same ranks, for one publisher: each counts its epochs from 0."""
        self._opened += 1
        made = copy.copy(self)
        made._our_keys = [[], []]  # other ranks may still read the keys of the previous publisher
        return made

    def begin_epoch(self, number: int) -> None:
        self._epoch, self._message = number, 0
        for key in self._our_keys.pop(0):  # a rank that still waits for it is too late
            self._store.delete_key(key)
        self._our_keys.append([])
        if self.size > 1:
            self._store.set(f"{self._opened}/at/{self.rank}", str(number))

    def gather(self, data: bytes, timeout_s: float) -> list[bytes]:
        """Returns all ranks' bytes on rank 0, and nothing on the others."""
        if self.size == 1:
            return [data]
        message = self._next()
        if self.rank != 0:
            self._write(f"{message}/{self.rank}", data)
            return []
        keys = [f"{message}/{rank}" for rank in range(1, self.size)]
        self._wait(keys, timeout_s, range(1, self.size))
        return [data, *map(self._store.get, keys)]

    def broadcast(self, data: bytes, timeout_s: float) -> bytes:
        """Returns rank 0's bytes on every rank."""
        if self.size == 1:
            return data
        message = self._next()
        if self.rank == 0:
            self._write(message, data)
            return data
        self._wait([message], timeout_s, [0])
        return bytes(self._store.get(message))

    def _next(self) -> str:
        self._message += 1
        return f"{self._opened}/{self._epoch}/{self._message}"

    def _write(self, key: str, data: bytes) -> None:
        self._our_keys[-1].append(key)
        self._store.set(key, data)

    def _wait(self, keys: list[str], timeout_s: float, ranks: Sequence[int]) -> None:
        until = time.monotonic() + timeout_s
        pause_s, ask_s = _SHORTEST_S, _FIRST_ASK_S
        ask = time.monotonic() + ask_s
        waiting = Waiting()
        while not self._store.check(keys):
            waiting.look(lambda: self._describe_silent(keys, ranks))
            late = time.monotonic() >= until
            if late or time.monotonic() >= ask:
                each = zip(keys, ranks, strict=True)
                self._check_progress(dict(each), timeout_s if late else None)
                ask_s = min(2 * ask_s, _LAST_ASK_S)
                ask = time.monotonic() + ask_s
            time.sleep(pause_s)
            pause_s = min(1.5 * pause_s, _LONGEST_S)

    def _describe_silent(self, keys: list[str], ranks: Sequence[int]) -> str:
        each = zip(keys, ranks, strict=True)
        silent = [rank for key, rank in each if not self._store.check([key])]
        return (
            f"publisher rank {self.rank}: nothing from ranks {silent[:8]} ({len(silent)} of "
            f"{len(keys)}); it is at {_place(self._epoch)}, rank {silent[0]} at "
            f"{_place(self._at(silent[0]))}"
            if silent
            else f"publisher rank {self.rank}: all ranks have just answered"
        )

    def _check_progress(self, ranks: dict[str, int], waited_s: float | None) -> None:
        """Raises if a rank that we wait for is ahead of us, or after the deadline."""
        silent = [rank for key, rank in ranks.items() if not self._store.check([key])]
        at = {rank: self._at(rank) for rank in silent[: None if waited_s is None else 8]}
        ahead = [rank for rank in at if at[rank] > self._epoch]
        # A rank writes its message before it goes on, so the message is visible by now.
        if any(rank in ahead and not self._store.check([key]) for key, rank in ranks.items()):
            raise IncompleteError(
                f"publisher rank {self.rank} is at {_place(self._epoch)}, rank {ahead[0]} at "
                f"{_place(at[ahead[0]])} already: it left out a publish(), or gave it up; a "
                "version cannot mix steps"
            )
        if waited_s is None or not silent:
            return
        out_of_step = [rank for rank in at if at[rank] != self._epoch]
        raise DeadlineExceededError(
            f"publisher rank {self.rank} waited {waited_s:.1f} s for ranks {silent[:8]} "
            f"({len(silent)} of {self.size})"
            + (
                f"; it is at {_place(self._epoch)}, rank {out_of_step[0]} at "
                f"{_place(at[out_of_step[0]])}: if a rank left out a publish(), pass step= to "
                "publish(), so that the ranks agree again at the next step"
                if out_of_step
                else ""
            )
        )

    def _at(self, rank: int) -> int:
        key = f"{self._opened}/at/{rank}"
        return int(self._store.get(key)) if self._store.check([key]) else -1


def _place(epoch: int) -> str:
    if epoch < 0:
        return "no call yet"
    steps = epoch >> _STEP_SHIFT
    return f"step {steps - 1}" if steps else f"call {epoch}"


def _store_of(group: dist.ProcessGroup) -> dist.Store:
    """A connection of its own: a waiting call blocks all others of the same connection."""
    store = dist.distributed_c10d._get_default_store()
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    if isinstance(store, dist.TCPStore):
        store = dist.TCPStore(store.host, store.port, is_master=False, wait_for_workers=False)
    name = [secrets.token_hex(16)]
    dist.broadcast_object_list(name, src=dist.get_global_rank(group, 0), group=group)
    return dist.PrefixStore(f"driftless/{name[0]}", store)


def torch_environment() -> None:
    """Sets the environment that torch.distributed needs under mpirun and srun, for the ranks of
    this process' part of mpirun's command line (rollouts are other parts). Keeps variables that are
    set."""
    place = launch()
    if place.launcher not in ("mpirun", "srun") or place.world == 0:
        return
    if not place.address:
        raise InvalidArgumentError(
            f"{place.launcher} started processes on several hosts, without an address of rank "
            "0: set MASTER_ADDR"
        )
    for name, value in (
        ("RANK", place.rank),
        ("WORLD_SIZE", place.world),
        ("LOCAL_RANK", place.local_rank),
        ("MASTER_ADDR", place.address),
        ("MASTER_PORT", 29400),
    ):
        os.environ.setdefault(name, str(value))
