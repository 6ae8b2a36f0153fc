# SPDX-License-Identifier: Apache-2.0
"""One rank of an engine that follows a run, behind calls that never raise.

Engines call their workers through queues that lose count when one rank raises and another does not.
So every call here returns a reply (a dict of plain values) with what happened, and echoes the nonce
it was given: a reply with another nonce belongs to another call.

    {"nonce", "rank", "process", "ok", "error", "state", "version", "staged_version", "run",
     "digest", "follows", "waits", "ways": {way: how many tensors}, "timings": {name: ms},
     "moved": [text]}

The weights are named by `run`, `version` and `digest` together: the run and the manifest's digest of
the version that they are, "" for what is not known (a base belongs to no run; a rank that holds a
part of the tensors has no digest to compare). `follows` is the run that the receiver follows, and
`process` is random: an answer is that process's, and of none that was started in its place.
`waits` is what the last staging waited for in vain, "" if for nothing. `moved`
says what the engine had done to its tensors before the last stage(), which followed it.

States: closed (no receiver), idle, staging (a thread is at it), staged, committed (the last commit
can be taken back), failed (the last staging or commit; the weights are those of `version`). An
error is told by every reply until the next call that succeeds; `version` is always what the weights
are, -1 if they are parts of two versions.

Calls come from the engine's main thread. stage() starts a thread and returns; while it runs nothing
else touches the receiver.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import driftless

from . import allowed
from .target import EngineTarget

Reply = dict[str, Any]

# The `version` of a rank whose weights are parts of two versions.
TORN = -1
# Names this process; what was forked from it has another number.
TOKEN = secrets.token_hex(8)
# How long open() waits for the run's announcement. The engine stands still meanwhile: open() can be
# called again.
OPEN_TIMEOUT_S = 10.0


class RankReceiver:
    """`make_target(chunk_bytes)` makes the target on the first open(), on the thread that calls it.
    `settings`: the operator's (allowed.py)."""

    def __init__(
        self,
        rank: int,
        make_target: Callable[[int], EngineTarget],
        settings: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self.rank, self.settings = rank, settings
        self._make_target = make_target
        self._target: EngineTarget | None = None
        self._job: driftless.Job | None = None
        self._receiver: driftless.Receiver | None = None
        self._opened: tuple[str, tuple[str, ...]] | None = None
        self._thread: threading.Thread | None = None
        self._state = "closed"
        self._error: str | None = None
        self._version = 0
        self._before: int | None = None  # the version that the last commit replaced
        self._staged: int | None = None
        self._digest = ""
        self._run = ""
        self._follows = ""
        self._ticket = ""  # of the newest staging
        self._waits = ""
        self._timings: dict[str, float] = {}
        self._moved: list[str] = []
        self._holds_none = False  # the weights are those of no version
        self._held_one = False  # they were, once
        # Called on the thread of stage() when it ends: for engines that cannot be asked meanwhile.
        self.on_staged: Callable[[Reply], None] | None = None

    # --- the calls ---------------------------------------------------------------------------

    def open(
        self, config: str, sets: Sequence[str] = (), nonce: str = "", take_over: str = ""
    ) -> Reply:
        """Follows the run of a configuration: a file's path, or YAML text. Repeating it changes
        nothing; another configuration takes the place of the first, and the weights stay. Weights
        of another run are refused, unless `take_over` is the run's id: then its first full version
        replaces them."""
        return self._answer(nonce, lambda: self._open(config, tuple(sets), take_over))

    def open_allowed(self, source: str | None, nonce: str = "", take_over: str = "") -> Reply:
        """Follows what the engine's operator allowed under that name; if nothing, the rank stays as
        it is."""
        try:
            found = allowed.source_of(source, self.settings)
        except driftless.Error as problem:
            return self._reply(nonce, text_of(problem))
        return self.open(found.config, found.sets, nonce, take_over)

    def stage(self, nonce: str = "", timeout_s: float = 60.0, ticket: str = "") -> Reply:
        """Starts a thread that waits for something newer and makes it ready; what was staged before
        is dropped. status() tells how far it is. Only a commit with the same ticket takes it."""
        return self._answer(nonce, lambda: self._stage(timeout_s, nonce, ticket))

    def status(self, nonce: str = "") -> Reply:
        return self._answer(nonce, lambda: None)

    def commit(self, version: int | None = None, nonce: str = "", ticket: str = "") -> Reply:
        """Writes what is staged; refused if that is not `version`, or was staged for another: a
        commit that comes late finds another ticket."""
        return self._answer(nonce, lambda: self._remember(lambda: self._commit(version, ticket)))

    def refuse(self, why: str, nonce: str = "") -> Reply:
        """For a commit that must not be tried: told like one that failed."""

        def refused() -> None:
            raise driftless.errors.UnsupportedError(why)

        return self._answer(nonce, lambda: self._remember(refused))

    def rollback(self, version: int, nonce: str = "") -> Reply:
        """Back to `version`: drops what is staged, or takes the last commit back."""
        return self._answer(nonce, lambda: self._rollback(version))

    def shares(self, sweep: bool = False, nonce: str = "") -> Reply:
        """What this rank holds of each tensor, beside the reply: plugin/engines/engine_shares.h.
        With `sweep` the weights are read now; else it is what was tracked since they were."""
        told: dict[str, Any] = {}

        def look() -> None:
            receiver, target = self._ready()
            if sweep:
                self._follow_moves(receiver, target)  # what the engine computes with is read
            try:
                told.update(shares_of(target, receiver, sweep))
            finally:
                self._look(receiver)  # weights that are not what they must be are no version

        return {**self._answer(nonce, lambda: self._remember(look)), **told}

    def read(self, tensor: str = "", first: int = 0, units: int = 0, nonce: str = "") -> Reply:
        """What lies there now, whatever the rank holds, beside the reply: plugin/engines/
        engine_places.h. Of all tensors their shares, of one its blocks, or some elements."""
        told: dict[str, Any] = {}

        def look() -> None:
            receiver, target = self._ready()
            self._follow_moves(receiver, target)
            told.update(read_of(target.native, tensor, first, units))

        return {**self._answer(nonce, look), **told}

    def close(self, nonce: str = "") -> Reply:
        return self._answer(nonce, self._close)

    def wait(self, timeout_s: float) -> Reply:
        """For one process alone: waits for the thread of stage()."""
        thread = self._thread
        if thread is not None:
            thread.join(timeout_s)
        return self.status()

    # --- what they do ------------------------------------------------------------------------

    def _answer(self, nonce: str, work: Callable[[], None]) -> Reply:
        error = None
        try:
            work()
        except Exception as problem:  # noqa: BLE001  a reply, whatever it was
            error = text_of(problem)
        return self._reply(nonce, error or self._error)

    def _reply(self, nonce: str, error: str | None) -> Reply:
        return reply(
            nonce, self.rank, error, state=self._state, version=self._version,
            staged_version=self._staged, run=self._run, digest=self._digest, follows=self._follows,
            waits=self._waits, ways=ways_of(self._target), timings=dict(self._timings), moved=list(self._moved),
        )  # fmt: skip

    def _open(self, config: str, sets: tuple[str, ...], take_over: str) -> None:
        if self._receiver is not None and self._opened == (config, sets):
            return
        self._close()
        settings = load_config(config, sets)
        if self._target is None:
            self._target = self._make_target(settings.chunk_bytes)
        job = driftless.Job(settings, "rollout", launched=False)
        try:
            receiver = driftless.Receiver(
                job, self._target.native, timeout_s=OPEN_TIMEOUT_S, take_over=take_over
            )
        except BaseException:
            job.leave()
            raise
        self._job, self._receiver, self._opened = job, receiver, (config, sets)
        self._state, self._error = "idle", None
        self._look(receiver)

    def _stage(self, timeout_s: float, nonce: str, ticket: str) -> None:
        receiver, target = self._ready()
        self._follow_moves(receiver, target)
        self._state, self._error, self._staged = "staging", None, None
        self._ticket = ticket
        target.reads = False
        arguments = (receiver, timeout_s, nonce)
        self._thread = threading.Thread(
            target=self._stage_on_thread, args=arguments, name="driftless-stage", daemon=True
        )
        try:
            self._thread.start()
        except BaseException:  # the process may have no more threads: nothing stages
            self._thread, self._state = None, "failed"
            raise

    def _follow_moves(self, receiver: driftless.Receiver, target: EngineTarget) -> None:
        """What the engine did to its tensors since the last time. Here it does not use them."""
        try:
            with no_grad():
                self._moved = target.follow(receiver.tensor_digests)
        finally:
            self._look(receiver)

    def note_sleep(self, level: int) -> None:
        """The engine gives up the memory of its weights (ModuleTarget.note_sleep), once the staging
        that reads them has ended."""
        if self._target is None:
            return
        self._target.note_sleep(level)
        if self._thread is not None and self._target.reads:
            self._thread.join()

    def note_wake(self) -> None:
        if self._target is not None:
            self._target.note_wake()

    def _stage_on_thread(self, receiver: driftless.Receiver, timeout_s: float, nonce: str) -> None:
        began = time.monotonic()
        staged, error, state = None, None, "idle"
        try:
            with no_grad():
                if receiver.stage(timeout_s):
                    staged, state = receiver.staged_version, "staged"
        except Exception as problem:  # noqa: BLE001  told by status()
            error, state = text_of(problem), "failed"
        self._timings = {"staging_ms": (time.monotonic() - began) * 1e3}
        # The state last: who sees another than "staging" may use the receiver.
        self._staged, self._error = staged, error
        self._look(receiver)
        self._note_wait("" if staged is not None else error or self._nothing_newer())
        self._state = state
        if self.on_staged is not None:
            self.on_staged(self.status(nonce))

    def _nothing_newer(self) -> str:
        what = f"newer than version {self._version} is there"
        if self._version == TORN or not (self._run or self._digest):
            what = "is there that a rank without a version can begin with"
        where = self._opened[0].strip()[:200] if self._opened else "nothing"
        return f"nothing {what}; it follows run {self._follows} by {where}"

    def _note_wait(self, why: str) -> None:
        """In the engine's log: each reason once."""
        if why and why != self._waits:
            print(f"driftless: rank {self.rank} waits: {why}", flush=True)
        self._waits = why

    def _commit(self, version: int | None, ticket: str) -> None:
        receiver, target = self._ready()
        if ticket != self._ticket:
            raise driftless.errors.InvalidArgumentError(
                f"rank {self.rank} has nothing staged for this commit: stage again"
            )
        if self._staged is None:
            if self._state == "committed" and version == self._version:
                return  # asked again: the first answer was lost
            raise driftless.errors.InvalidArgumentError(
                f"rank {self.rank} is at version {self._version} and has nothing staged"
                + (f": {self._error}" if self._error else "")
            )
        if version is not None and version != self._staged:
            raise driftless.errors.InvalidArgumentError(
                f"rank {self.rank} has version {self._staged} staged, not {version}: stage again"
            )
        before, was = self._version, self._held()
        try:
            with no_grad():
                report = receiver.commit()
                self._written(target, receiver)
        finally:
            # A commit that holds may fail afterwards: the version tells.
            self._staged = None
            self._look(receiver)
            held = self._held() != was and self._version != TORN
            self._state, self._before = ("committed", before) if held else ("failed", None)
        self._error = None
        for name in ("fetch_ms", "stage_ms", "pause_ms", "apply_ms", "resume_ms"):
            self._timings[name] = getattr(report, name)

    def _held(self) -> tuple[int, str, str]:
        """What the weights are. The number alone does not say whether they are a version."""
        return self._version, self._run, self._digest

    def _written(self, target: EngineTarget, receiver: driftless.Receiver | None = None) -> None:
        """For targets that are not the engine's own memory: the engine takes what they hold. What
        it does not take is rolled back in the target, and the engine gets the old weights again."""
        self._holds_none = True  # until one load has gone through
        try:
            target.written()
        except Exception:
            if receiver is None:
                raise
            receiver.rollback()
            target.written()
            self._holds_none = False
            raise
        self._holds_none = False

    def _remember(self, work: Callable[[], None]) -> None:
        """For calls whose reply may be lost: status() tells what went wrong."""
        try:
            work()
        except Exception as problem:
            self._error = text_of(problem)
            raise

    def _rollback(self, version: int) -> None:
        receiver, target = self._ready()
        if self._staged is not None and version == self._version:
            receiver.rollback()
            self._state, self._staged, self._error = "idle", None, None
            return
        taken_over = self._state == "committed" and version == self._before  # of another run
        if version == self._version and not taken_over:
            self._error = None
            self._state = "committed" if self._state == "committed" else "idle"
            return
        if self._state != "committed" or version != self._before:
            raise driftless.errors.InvalidArgumentError(
                f"rank {self.rank} is at version {self._version} and cannot go back to {version}: "
                "only the last commit can be taken back; publish an anchor"
            )
        try:
            with no_grad():
                receiver.rollback()
                self._written(target)
        finally:
            self._look(receiver)
        self._state, self._before, self._error = "idle", None, None

    def _ready(self) -> tuple[driftless.Receiver, EngineTarget]:
        if self._receiver is None or self._target is None:
            raise driftless.errors.InvalidArgumentError(
                f"rank {self.rank} follows no run: call open() first"
                + (f" ({self._error})" if self._error else "")
            )
        if self._state == "staging":
            raise driftless.errors.BusyError(f"rank {self.rank} is still staging: ask again")
        return self._receiver, self._target

    def _look(self, receiver: driftless.Receiver) -> None:
        """What the weights are. A commit that could not be undone leaves no version."""
        with contextlib.suppress(driftless.Error):
            state = receiver.state
            self._held_one = self._held_one or state.valid
            torn = self._holds_none or (self._held_one and not state.valid)
            self._version = TORN if torn else state.version
            known = state.valid and not state.partial and not torn
            self._digest = state.digest if known else ""
            self._run = state.run or ""
            self._follows = receiver.run

    def _close(self) -> None:
        if self._thread is not None and self._thread.is_alive():
            raise driftless.errors.BusyError(f"rank {self.rank} is still staging: ask again")
        receiver, job = self._receiver, self._job
        self._receiver = self._job = self._opened = self._thread = None
        self._state, self._staged, self._before = "closed", None, None
        self._follows = self._ticket = ""
        if receiver is not None:
            with contextlib.suppress(driftless.Error):
                receiver.leave()
            receiver.close()
        if job is not None:
            job.leave()


def reply(nonce: str, rank: int, error: str | None = None, **said: Any) -> Reply:
    """What a rank says; without more, that of one that could not even ask its receiver."""
    nothing = {
        "process": process_id(), "state": "closed", "version": 0, "staged_version": None,
        "run": "", "digest": "", "follows": "", "waits": "", "ways": {}, "timings": {}, "moved": [],
    }  # fmt: skip
    return {"nonce": nonce, "rank": rank, "ok": error is None, "error": error, **nothing, **said}


def shares_of(target: EngineTarget, receiver: driftless.Receiver, sweep: bool) -> dict[str, Any]:
    return rows_of(target.native, target.shares(sweep), receiver.tensor_digests or {})


def rows_of(target: Any, shares: Any, manifest: Mapping[str, str]) -> dict[str, Any]:
    tensors, unproven = shares
    sizes = {spec.name: spec.units for spec in target.layout.tensors}
    rows = [
        [name, units, sizes[name], region, digest, manifest.get(name, "")]
        for name, units, region, digest in tensors
    ]
    told = {row[0] for row in rows} | {name for name, _ in unproven}
    return {
        "shares": rows,
        "unproven": [list(each) for each in unproven],
        "absent": [name for name, units in sizes.items() if units and name not in told],
    }


# Elements of a tensor that are told apart by their digest, and then read.
BLOCK_UNITS = 1 << 16


def read_of(target: Any, tensor: str, first: int, units: int) -> dict[str, Any]:
    if not tensor:
        shares, suspects = target.look()
        return {**rows_of(target, shares, {}), "suspects": suspects}
    if not units:
        blocks, disagree = target.blocks(tensor, BLOCK_UNITS)
        return {"block_units": BLOCK_UNITS, "blocks": blocks, "disagree": disagree}
    if units > BLOCK_UNITS:
        raise driftless.errors.InvalidArgumentError(f"{units} elements: at most {BLOCK_UNITS}")
    copies = target.copies(tensor, first, units)
    return {"copies": [[name, runs, data.hex(), odd] for name, runs, data, odd in copies]}


def process_id() -> str:
    return f"{TOKEN}-{os.getpid()}"


def load_config(config: str, sets: Sequence[str]) -> driftless.Config:
    """A file's path, or the text itself if it has several lines or a key."""
    if "\n" in config or (":" in config and not Path(config).exists()):
        return driftless.Config.parse(config, list(sets))
    return driftless.Config.load(config, list(sets))


def checkpoint_directory(model: str, revision: str | None = None) -> str:
    """Where a model's checkpoint is: the directory itself, or what the hub's cache has."""
    if Path(model).is_dir():
        return model
    from huggingface_hub import snapshot_download

    return snapshot_download(model, revision=revision, local_files_only=True)


def text_of(problem: BaseException) -> str:
    code = getattr(problem, "code", None)
    name = code if isinstance(code, str) else type(problem).__name__
    text = str(problem)
    return text if text.startswith(name) else f"{name}: {text}"


def ways_of(target: EngineTarget | None) -> dict[str, int]:
    return {} if target is None else dict(Counter(way.way for way in target.ways.values()))


@contextlib.contextmanager
def no_grad() -> Any:
    """Engines call with gradients enabled, and a thread begins that way."""
    try:
        import torch
    except ImportError:
        yield
        return
    with torch.no_grad():
        yield
