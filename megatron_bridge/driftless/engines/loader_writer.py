# SPDX-License-Identifier: Apache-2.0
"""Writes the tensors that have no map through the module's own loader, as masked overwrites or as
whole tensors."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Container
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from .. import _native
from ..torch_dtypes import TORCH_DTYPES
from .bound import BoundTensors
from .derived import Derived
from .load_layout import ModuleReloads, ReloadGroup
from .masked import MaskedLoad, MaskedTensor, Maps, StagedTensor, fill_with
from .moves import Moves
from .planning import Plan
from .tracing import LoadWeights, Trace
from .whole import WholeLoad


@dataclass(frozen=True)
class _Pass:
    """A masked tensor to make. With `only`, it holds only the new values with these bits."""

    name: str
    sentinel: int
    only: int | None
    complete: bool  # no new value equals the sentinel


@dataclass
class _Chunk:
    """Masked tensors that are loaded together."""

    on_gpu: bool  # the full-shape tensors
    passes: list[_Pass] = field(default_factory=list)
    size_bytes: int = 0
    staged: list[StagedTensor | None] = field(default_factory=list)  # one per pass
    dense: list[tuple[int, int, int]] = field(default_factory=list)  # for MaskedDevice to fill
    tensors: list[MaskedTensor] = field(default_factory=list)  # the ones on the GPU


class LoaderWriter:
    """The native target calls it, from one thread at a time.

    Tensors that are written whole have a shadow on the host: the values of the newest version.
    """

    def __init__(
        self,
        bound: BoundTensors,
        load_weights: LoadWeights | None,
        layout: Any,
        base: Callable[[str], torch.Tensor],
        chunk_bytes: int,
        reloads: ModuleReloads | None = None,
    ) -> None:
        self._bound, self._load, self._reloads = bound, load_weights, reloads
        devices = {storage.device for storage in bound.storages.values()}
        self._devices = [device for device in devices if device.type == "cuda"]
        self._maps: Maps = {}
        self._gpu: Any = None  # a MaskedDevice, if all masked tensors are on one GPU
        self._gpu_device: torch.device | None = None  # the GPU of _gpu
        self._specs = {spec.name: spec for spec in layout.tensors}
        self._base, self._chunk_bytes = base, chunk_bytes
        self._masked: dict[str, set[int]] = {}  # name -> storages that it fills
        self._shadows: dict[str, torch.Tensor] = {}
        self._groups: list[ReloadGroup] = []  # modules that the engine loads again
        self._changes: Any = None
        self._whole: dict[str, torch.Tensor] = {}  # staged new values
        self._chunks: list[_Chunk] = []  # staged masked tensors
        self._filled: _Chunk | None = None  # the chunk whose tensors are on the GPU now
        self._done: list[Callable[[], None]] = []  # undoes each load
        self._replaced: dict[str, torch.Tensor] = {}  # shadows from before the commit
        self.derived = Derived(bound)
        self.moves: Moves | None = None
        self.reads = False  # staging has begun to read the weights

    # --- which tensors ---------------------------------------------------------------------------

    def prove(self, plan: Plan, trace: Trace) -> dict[str, str]:
        """Takes the tensors that the plan leaves to the loader. Returns those that the loader
        cannot write, with the reason. Each is tried with the checkpoint's own values, which must
        leave the module unchanged; the module is restored in any case."""
        refused: dict[str, str] = {}
        for name in list(plan.masked):
            storages = {copy.storage for copy in trace.copies.get(name, ())}
            why = self._try_masked(name, storages)
            if why is None:
                self._masked[name] = storages
            else:
                plan.demote(name, f"{plan.masked[name]}; {why}")
        for name, reason in plan.whole.items():
            storages = {copy.storage for copy in trace.copies.get(name, ())}
            why = self._try_whole(name, storages, trace.hooks)
            if why is None:
                self._shadows[name] = self._base(name).clone()
            else:
                refused[name] = f"{reason}; {why}"
        self._gpu = self._open_gpu()
        return refused

    def take_group(self, group: ReloadGroup) -> str | None:
        """From now on every commit makes the engine load these modules again. Tries that with the
        checkpoint's values, like prove(); returns why it fails, or None."""
        tensors = {name: self._base(name).clone() for name in group.names}
        load = WholeLoad(self._bound)
        try:
            self._run_group(load, group, tensors)
            if not load.before:
                return "loading them again makes no write that can be observed"
            changed = load.changed(but=())
            if changed is not None:
                return f"loading them again gives other values than '{changed}' holds"
        except Exception as error:
            return f"loading them again fails ({_first_line(error)})"
        finally:
            load.undo()
        self._shadows.update(tensors)
        self._groups.append(group)
        return None

    def _run_group(
        self, load: WholeLoad, group: ReloadGroup, tensors: dict[str, torch.Tensor]
    ) -> None:
        assert self._reloads is not None
        weights = [(name, tensors[name]) for name in group.names]
        load.run(partial(self._reloads.reload, group.modules, weights))

    def inherit(self, before: LoaderWriter, trace: Trace) -> None:
        """After a new trace: takes over the tensors and values of the previous writer."""
        for name in before._masked:
            self._masked[name] = {copy.storage for copy in trace.copies.get(name, ())}
        self._shadows, self._groups = before._shadows, before._groups
        self.derived = Derived(self._bound, before.derived.derivations)
        self._gpu = self._open_gpu()

    def _open_gpu(self) -> Any:
        used = {key for storages in self._masked.values() for key in storages}
        devices = {self._bound.storages[key].device for key in used}
        if len(devices) != 1 or next(iter(devices)).type != "cuda":
            return None
        self._gpu_device = next(iter(devices))
        return _native.MaskedDevice(self._gpu_device.index or 0)

    def _try_masked(self, name: str, storages: set[int]) -> str | None:
        if self._load is None:
            return "there is no load_weights"
        load = MaskedLoad(self._bound, storages)
        try:
            load.load(self._load, [MaskedTensor(name, self._base(name), None)])
            return self._unseen(storages - {k for k, names in load.filled.items() if name in names})
        except Exception as error:
            return _first_line(error)
        finally:
            load.undo()  # also undoes the writes of its hooks

    def _unseen(self, storages: set[int]) -> str | None:
        """Why the loader cannot be used for these: it writes them outside torch's dispatch. Such a
        write would put sentinels into them, and could not be undone."""
        named = sorted(self._bound.storages[key].name for key in storages)
        return f"the write into '{named[0]}' cannot be observed" if named else None

    def _try_whole(self, name: str, storages: set[int], hooks: Container[int]) -> str | None:
        if self._load is None:
            return "there is no load_weights"
        load = WholeLoad(self._bound)
        try:
            load.load(self._load, name, self._base(name).clone())
            if not load.before:
                return "the loader does not load it alone, or does so where it cannot be observed"
            if why := self._unseen(storages - load.before.keys()):
                return why
            other = load.changed(but=hooks)
        except Exception as error:
            return f"loading it again fails ({_first_line(error)})"
        finally:
            load.undo()
        if other is None:
            return None
        return f"loading it again gives other values than '{other}' holds (changed after loading)"

    def names(self) -> list[str]:
        return [*self._masked, *self._shadows]

    # --- for the native target -------------------------------------------------------------------

    def check(self, paused: bool) -> None:
        """Checks that the parameters are still in place, and waits for the engine's queued work."""
        self.reads = self.reads or not paused
        if self.moves is not None:
            self.moves.check(paused)
        self._wait()

    def stage(self, changes: Any) -> None:
        self._changes = changes
        for name in changes.names:
            if changes.whole:
                self._whole[name] = self._empty(name)
                changes.write(name, self._whole[name])
            elif name in self._shadows:
                self._whole[name] = self._shadows[name].clone()
                changes.write(name, self._whole[name])
        self._chunks = [] if changes.whole else self._cut(changes)
        self._stage_gpu(changes)

    def commit(self) -> None:
        """If it raises, the caller calls undo(). Holds off the garbage collector, which takes 100
        ms in a process with torch: the engine is paused meanwhile."""
        collects = gc.isenabled()
        gc.disable()
        try:
            self._commit()
        finally:
            self._remember_moves()
            if collects:
                gc.enable()

    def _commit(self) -> None:
        assert self._load is not None
        for chunk in self._chunks:
            self._commit_chunk(self._make(chunk))
        together = {name for group in self._groups for name in group.names}
        for group in self._groups:
            if not self._whole.keys().isdisjoint(group.names):
                self._commit_group(group)
        for name, tensor in self._whole.items():
            if name not in together:
                load = WholeLoad(self._bound)
                self._done.append(load.undo)
                load.load(self._load, name, tensor)
        self._wait()
        for name, tensor in self._whole.items():
            if name in self._shadows:
                self._replaced[name] = self._shadows[name]
                self._shadows[name] = tensor
        self._whole = {}

    def undo(self) -> None:
        unmoved = self._unmoved()
        self._undo_loads()
        self._shadows.update(self._replaced)
        self._replaced = {}
        if unmoved:
            self._remember_moves()

    def written(self) -> None:
        """After all writes, or their undo: computes the derived tensors."""
        if not self.derived.derivations:
            return
        unmoved = self._unmoved()
        self.derived.refresh()
        self._wait()
        if unmoved:
            self._remember_moves()

    def drop(self) -> None:
        self._changes, self._whole, self._chunks, self._filled = None, {}, [], None
        self._done, self._replaced = [], {}

    def _unmoved(self) -> bool:
        """Whether the engine has moved or written no tensor (moves.py)."""
        return self.moves is None or not self.moves.found().what

    def _remember_moves(self) -> None:
        """Marks these writes as our own."""
        if self.moves is not None:
            self.moves.remember()

    # --- parts -----------------------------------------------------------------------------------

    def _wait(self) -> None:
        for device in self._devices:
            torch.cuda.current_stream(device).synchronize()

    def _undo_loads(self) -> None:
        """An undo that raises stays in the list, with all that remain."""
        while self._done:
            self._done[-1]()
            self._done.pop()
        self._wait()

    def _commit_chunk(self, chunk: list[MaskedTensor]) -> None:
        assert self._load is not None
        loading = set().union(*(self._masked[each.name] for each in chunk))
        load = MaskedLoad(self._bound, loading, self._maps)
        self._done.append(load.undo)
        load.load(self._load, chunk)

    def _commit_group(self, group: ReloadGroup) -> None:
        before = {name: self._shadows[name] for name in group.names}
        load = WholeLoad(self._bound)

        def undo() -> None:
            """Also restores what the engine keeps of a module outside of tensors."""
            try:
                self._run_group(WholeLoad(self._bound), group, before)
            finally:
                load.undo()

        self._done.append(undo)
        after = {name: self._whole.get(name, before[name]) for name in group.names}
        self._run_group(load, group, after)

    def _empty(self, name: str) -> torch.Tensor:
        spec = self._specs[name]
        return torch.empty(spec.shape, dtype=TORCH_DTYPES[spec.dtype])

    def _cut(self, changes: Any) -> list[_Chunk]:
        """Splits into chunks whose full-shape tensors have up to chunk_bytes; a larger tensor gets
        a chunk of its own. On a GPU the limit is _gpu_bytes(); tensors that exceed it stay on the
        host."""
        masked = [name for name in changes.names if name in self._masked]
        gpu_bytes = self._gpu_bytes(changes, masked)
        chunks: list[_Chunk] = []
        last: dict[bool, _Chunk] = {}
        for name in masked:
            time.sleep(0)
            size = _aligned(self._specs[name].size_bytes)
            for each in _passes(name, changes.absent(name)):
                on_gpu = self._gpu is not None and each.complete and size <= gpu_bytes
                room = gpu_bytes if on_gpu else self._chunk_bytes
                chunk = last.get(on_gpu)
                if chunk is None or each.only is not None or chunk.size_bytes + size > room:
                    chunk = last[on_gpu] = _Chunk(on_gpu)
                    chunks.append(chunk)
                chunk.passes.append(each)
                chunk.size_bytes += size
        return chunks

    def _gpu_bytes(self, changes: Any, masked: list[str]) -> int:
        """The GPU memory for full-shape tensors: chunk_bytes, less the backup of the values that
        the changes overwrite."""
        widths = {name: TORCH_DTYPES[self._specs[name].dtype].itemsize for name in masked}
        kept = sum(changes.changed(name) * width for name, width in widths.items())
        return self._chunk_bytes - kept

    def _stage_gpu(self, changes: Any) -> None:
        """Copies the changes to the GPU, and makes the full-shape tensors of the first chunk there.
        The other chunks reuse the same memory, one after another."""
        names: list[str] = []
        for chunk in self._chunks:
            at = 0
            for each in chunk.passes:
                if self._gpu is None or not each.complete:
                    chunk.staged.append(None)
                    continue
                chunk.staged.append(StagedTensor(self._gpu, len(names), self._gpu_device))
                if chunk.on_gpu:
                    chunk.dense.append((len(names), at, each.sentinel))
                    at += _aligned(self._specs[each.name].size_bytes)
                names.append(each.name)
        if not names:
            return
        on_gpu = [chunk for chunk in self._chunks if chunk.on_gpu]
        self._filled = on_gpu[0] if on_gpu else None
        self._gpu.stage(
            changes,
            names,
            max((chunk.size_bytes for chunk in on_gpu), default=0),
            self._filled.dense if self._filled else [],
        )
        for chunk in on_gpu:
            chunk.tensors = [self._on_gpu(chunk, i) for i in range(len(chunk.passes))]

    def _make(self, chunk: _Chunk) -> list[MaskedTensor]:
        if not chunk.on_gpu:
            return [self._on_host(chunk, i) for i in range(len(chunk.passes))]
        if self._filled is not chunk:
            self._gpu.fill(chunk.dense, torch.cuda.current_stream(self._gpu_device).cuda_stream)
            self._filled = chunk
        return chunk.tensors

    def _on_gpu(self, chunk: _Chunk, i: int) -> MaskedTensor:
        time.sleep(0)  # yields the GIL to the engine, which is generating
        number, at, sentinel = chunk.dense[i]
        tensor = self._gpu.tensor(number, at).torch()
        name = chunk.passes[i].name
        return MaskedTensor(name, tensor, sentinel, self._changes, chunk.staged[i])

    def _on_host(self, chunk: _Chunk, i: int) -> MaskedTensor:
        """Untouched memory costs nothing: the content is made only if the loader reads it."""
        each = chunk.passes[i]
        tensor = self._empty(each.name)
        changes = self._changes if each.complete else None
        fill = partial(self._fill, each, tensor)
        return MaskedTensor(each.name, tensor, each.sentinel, changes, chunk.staged[i], fill)

    def _fill(self, each: _Pass, tensor: torch.Tensor) -> None:
        fill_with(tensor, each.sentinel)
        self._changes.write(each.name, tensor, each.only)


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // 256) * 256


def _passes(name: str, absent: int | None) -> list[_Pass]:
    """One pass, or two if the new values use every bit pattern: the second pass writes the values
    that equal the first sentinel, with another sentinel."""
    if absent is not None:
        return [_Pass(name, absent, None, True)]
    return [_Pass(name, 0, None, False), _Pass(name, 1, 0, False)]


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0][:200] if str(error) else ''}"
