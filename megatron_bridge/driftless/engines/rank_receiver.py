# SPDX-License-Identifier: Apache-2.0
"""One rank of an engine that follows a run. Its calls never raise.

The native Worker (plugin/receive/worker.h) has the state machine and makes the replies
(worker_reply.h); this file turns them into dicts. The engine's main thread makes the calls. stage()
starts a thread and returns; while the thread runs, only status() and wait() are served.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from .. import _native, errors
from . import allowed
from .target import EngineTarget

Reply = dict[str, Any]

# `version` of a rank whose weights mix two versions.
TORN: int = _native.TORN_VERSION


class RankReceiver:
    """The first open() calls `make_target(chunk_bytes)`, on the caller's thread. `settings`: the
    operator's (allowed.py)."""

    def __init__(
        self,
        rank: int,
        make_target: Callable[[int], EngineTarget],
        settings: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self.rank, self.make_target, self.settings = rank, make_target, settings
        self.worker = _native.Worker(rank, make_target)

    @property
    def target(self) -> EngineTarget | None:
        return self.worker.target

    def _call(self, method: str, *arguments: Any) -> Reply:
        with no_grad():  # engines call with gradients enabled
            return json.loads(getattr(self.worker, method)(*arguments))

    def open(
        self, config: str, sets: Sequence[str] = (), nonce: str = "", take_over: str = ""
    ) -> Reply:
        """Follows the run of a configuration (a file's path, or YAML text). `take_over`: the id of
        a run whose first full version may replace another run's weights."""
        return self._call("open", config, list(sets), nonce, take_over)

    def open_allowed(self, source: str | None, nonce: str = "", take_over: str = "") -> Reply:
        """Follows the configuration that the engine's operator allowed under that name. If there is
        none, the rank stays as it is."""
        try:
            found = allowed.source_of(source, self.settings)
        except errors.Error as problem:
            return {**self.status(nonce), "ok": False, "error": text_of(problem)}
        return self.open(found.config, found.sets, nonce, take_over)

    def stage(self, nonce: str = "", timeout_s: float = 60.0, ticket: str = "") -> Reply:
        return self._call("stage", timeout_s, nonce, ticket)

    def status(self, nonce: str = "") -> Reply:
        return self._call("status", nonce)

    def commit(self, version: int | None = None, nonce: str = "", ticket: str = "") -> Reply:
        return self._call("commit", version, nonce, ticket)

    def refuse(self, why: str, nonce: str = "") -> Reply:
        return self._call("refuse", why, nonce)

    def rollback(self, version: int, nonce: str = "") -> Reply:
        return self._call("rollback", version, nonce)

    def shares(self, sweep: bool = False, nonce: str = "") -> Reply:
        return self._call("shares", sweep, nonce)

    def read(self, tensor: str = "", first: int = 0, units: int = 0, nonce: str = "") -> Reply:
        return self._call("read", tensor, first, units, nonce)

    def close(self, nonce: str = "") -> Reply:
        return self._call("close", nonce)

    def wait(self, timeout_s: float) -> Reply:
        """Waits for the thread of stage(); for tests, and engines of one process."""
        self.worker.wait(timeout_s)
        return self.status()

    def on_staged(self, call: Callable[[Reply], None]) -> None:
        """Registers `call`, which the thread of stage() makes at its end: for engines that cannot
        be queried meanwhile."""
        self.worker.set_on_staged(lambda text: call(json.loads(text)))

    def note_sleep(self, level: int) -> None:
        """Waits until staging stops reading the weights, then lets the engine release their memory
        (ModuleTarget.note_sleep)."""
        if self.target is not None:
            self.target.note_sleep(level)
            if self.target.reads:
                self.worker.wait()

    def note_wake(self) -> None:
        if self.target is not None:
            self.target.note_wake()


def reply(nonce: str, rank: int, error: str | None = None, **more: Any) -> Reply:
    """A rank's reply; by default that of a rank whose worker could not be called."""
    return {**json.loads(_native.worker_reply(nonce, rank, error)), **more}


def text_of(problem: BaseException) -> str:
    code = getattr(problem, "code", None)
    name = code if isinstance(code, str) else type(problem).__name__
    text = str(problem)
    return text if text.startswith(name) else f"{name}: {text}"


@contextlib.contextmanager
def no_grad() -> Any:
    try:
        import torch
    except ImportError:
        yield
        return
    with torch.no_grad():
        yield
