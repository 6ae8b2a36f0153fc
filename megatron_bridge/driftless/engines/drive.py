"""Brings all ranks of an engine to a version, or leaves all of them where they were.

    stage on all ranks -> pause -> write on all ranks -> all there? finish -> clear caches -> resume
                                                      \\-> else rollback on all, then the same

An engine is driven through a few calls (`Engine`); how they reach its workers is the adapter's
business. Replies are those of follower.py.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from .. import errors
from .follower import Reply, text_of

# How often a question is asked again whose answers belong to other questions: an engine's reply
# queue that has slipped answers each call with the answer to the one before.
ASK_ATTEMPTS = 4
# How often ranks that found different versions are sent to look again.
STAGE_ATTEMPTS = 5
POLL_S = 0.02


class Engine(Protocol):
    def call(self, method: str, **arguments: Any) -> Sequence[Reply]:
        """Calls the method on every rank; one reply a rank."""

    def pause(self) -> None: ...
    def begin(self) -> None: ...
    def write(self, version: int, nonce: str) -> None:
        """Commits on every rank. What came of it is asked for by driftless_status."""

    def finish(self, version: int) -> None:
        """The engine serves this version from now on, and says so."""

    def clear_cache(self) -> None: ...
    def resume(self) -> None: ...


class EngineError(errors.IncompleteError):
    """An update that did not come about. `replies`: what each rank said; `versions`: where they
    are."""

    def __init__(self, message: str, replies: Sequence[Reply] = ()) -> None:
        super().__init__(message)
        self.replies = list(replies)

    @property
    def versions(self) -> list[int]:
        return [reply["version"] for reply in self.replies]


@dataclass
class Update:
    """An update that all ranks took. Times are of the driver, in ms."""

    from_version: int
    version: int
    replies: list[Reply]
    timings: dict[str, float] = field(default_factory=dict)


class Driver:
    """One thread at a time."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.version = 0

    def open(self, source: str | None = None) -> list[Reply]:
        """Every rank follows the run. `source`: a name that the engine's operator allowed
        (allowed.py); None: the configuration that it was started with."""
        replies = self.ask("driftless_open", source=source)
        refuse(replies, "the engine does not follow the run")
        self.version = self._one_version(replies)
        return replies

    def start_staging(self, timeout_s: float) -> None:
        refuse(self.ask("driftless_stage", timeout_s=timeout_s), "staging did not begin")

    def staged(self, timeout_s: float) -> int | None:
        """Waits until every rank has the same version staged; None: nothing newer came."""
        deadline = time.monotonic() + timeout_s
        for _ in range(STAGE_ATTEMPTS):
            replies = self._settled(deadline)
            refuse(replies, "staging failed")
            found = {reply["staged_version"] for reply in replies}
            if len(found) == 1:
                return found.pop()
            # The publisher was faster than some of them.
            self.start_staging(max(1.0, deadline - time.monotonic()))
        raise EngineError(f"the ranks never found the same version: {found}", replies)

    def update(self, timeout_s: float = 60.0, started: bool = False) -> Update | None:
        """Stages, where start_staging() has not, and commits. None: nothing newer came.
        EngineError: the engine serves what it served before, or, where the error says so, is left
        paused."""
        began = time.monotonic()
        if not started:
            self.start_staging(timeout_s)
        # Their own deadline is the ranks'; this one is for ranks that do not answer.
        version = self.staged(timeout_s + 60.0)
        if version is None:
            return None
        staged = time.monotonic()
        before = self.version
        self.engine.pause()
        paused = time.monotonic()
        replies = self._commit(before, version)
        written = time.monotonic()
        self.engine.clear_cache()
        self.engine.resume()
        failed = [reply for reply in replies if reply["version"] != version]
        if failed:
            raise EngineError(
                f"version {version} was refused, all ranks are at {before}: {errors_of(replies)}",
                replies,
            )
        self.version = version
        spent = {"staged_ms": staged - began, "pause_ms": paused - staged}
        spent |= {"commit_ms": written - paused, "resume_ms": time.monotonic() - written}
        return Update(before, version, replies, {name: s * 1e3 for name, s in spent.items()})

    def _commit(self, before: int, version: int) -> list[Reply]:
        """Ends with all ranks at one of the two, or raises with the engine paused."""
        try:
            self.engine.begin()
        except Exception:
            self.engine.resume()  # nothing has happened yet
            raise
        said = ""
        try:
            self.engine.write(version, nonce=new_nonce())
        except Exception as problem:  # noqa: BLE001  the ranks know what came of it
            said = text_of(problem)
        replies = self.ask("driftless_status")
        if any(reply["version"] != version for reply in replies):
            failed = replies
            replies = self.ask("driftless_rollback", version=before)
            for reply, first in zip(replies, failed, strict=True):
                reply["error"] = reply["error"] or first["error"] or said or None
        self.engine.finish(self._one_version(replies))
        return replies

    def _one_version(self, replies: Sequence[Reply]) -> int:
        found = {reply["version"] for reply in replies}
        if len(found) == 1:
            return found.pop()
        at = ", ".join(f"rank {r['rank']} at {r['version']}" for r in replies)
        raise EngineError(
            f"the ranks hold different versions ({at}) and could not be brought back; the engine "
            f"is left paused, restart it: {errors_of(replies)}",
            replies,
        )

    def _settled(self, deadline: float) -> list[Reply]:
        while True:
            replies = self.ask("driftless_status")
            if all(reply["state"] != "staging" for reply in replies):
                return replies
            if time.monotonic() > deadline:
                raise EngineError("ranks are still staging after the deadline", replies)
            time.sleep(POLL_S)

    def ask(self, method: str, **arguments: Any) -> list[Reply]:
        """One reply of every rank, each to this question: an answer that carries a nonce of before
        is not trusted. The same rank's reply to a repeated question counts, too, because it was
        asked after this one."""
        nonces: set[str] = set()
        got: dict[int, Reply] = {}
        for _ in range(ASK_ATTEMPTS):
            nonce = new_nonce()
            nonces.add(nonce)
            try:
                replies = self.engine.call(method, nonce=nonce, **arguments)
            except Exception as problem:  # a dead worker looks different in every engine
                raise EngineError(
                    f"the engine does not answer {method}: {text_of(problem)}; where it is dead, "
                    "start it again: it catches up"
                ) from problem
            for number, reply in enumerate(replies):
                if isinstance(reply, dict) and reply.get("nonce") in nonces:
                    got[number] = reply
            if len(got) == len(replies) > 0:
                return [got[number] for number in range(len(replies))]
            method, arguments = "driftless_status", {}
        raise EngineError(
            f"the engine answers with other calls' answers ({len(got)} of {len(replies)} ranks "
            "answered this one): its reply queue has slipped; restart it"
        )


def refuse(replies: Sequence[Reply], what: str) -> None:
    if not all(reply["ok"] for reply in replies):
        raise EngineError(f"{what}: {errors_of(replies)}", replies)


def errors_of(replies: Sequence[Reply]) -> str:
    said = [f"rank {reply['rank']}: {reply['error']}" for reply in replies if reply["error"]]
    return "; ".join(said) or "no rank said why"


def new_nonce() -> str:
    return secrets.token_hex(8)
