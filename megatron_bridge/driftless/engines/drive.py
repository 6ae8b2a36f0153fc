# SPDX-License-Identifier: Apache-2.0
"""Brings all ranks of an engine to a version, or leaves all of them at the version before.

The native EngineDriver (plugin/engines/engine_driver.h) does the work; this file returns its
results as Python objects. An engine is resumed only if all its ranks report the same run, version
and digest, and no rank holds parts of two versions; otherwise it stays paused, and the error says
so.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from os import PathLike, fspath
from typing import Any

from .. import _native, errors
from .rank_receiver import Reply


class EngineError(errors.IncompleteError):
    """An update that failed. `replies`: the last reply of each rank; `versions`: the versions in
    them; `left_paused`: the engine does not serve."""

    def __init__(
        self, message: str, replies: Sequence[Reply] = (), left_paused: bool = False
    ) -> None:
        super().__init__(message)
        self.replies = list(replies)
        self.left_paused = left_paused

    @property
    def versions(self) -> list[int]:
        return [reply["version"] for reply in self.replies]


@dataclass
class Update:
    """An update that all ranks committed. The driver measured the times, in ms."""

    from_version: int
    version: int
    replies: list[Reply]
    timings: dict[str, float] = field(default_factory=dict)


class Driver:
    """May be used by one thread at a time."""

    def __init__(self, native: _native.EngineDriver) -> None:
        self.native = native
        self.version = 0

    def open(self) -> list[Reply]:
        """Makes every rank follow the run. Raises EngineError if the ranks' weights do not add up
        to the digest of the version that they report: no update may build on them."""
        done = result_of(self.native.open())
        self.version = done["version"]
        return done["replies"]

    def start_staging(self, timeout_s: float) -> None:
        result_of(self.native.start_staging(timeout_s))

    def staged(self, timeout_s: float) -> int | None:
        """Waits until every rank has staged the same version; None: no newer version came."""
        return result_of(self.native.wait_staged(timeout_s))["staged"]

    def update(self, timeout_s: float = 60.0, started: bool = False) -> Update | None:
        """Stages, unless start_staging() did, and commits. None: no newer version came.
        EngineError: the engine serves the version before, or, if the error says so, stays
        paused."""
        done = result_of(self.native.update(timeout_s, started))
        if not done["updated"]:
            return None
        self.version = done["version"]
        return Update(done["from_version"], done["version"], done["replies"], done["timings"])

    def ask(self, method: str = "driftless_status") -> list[Reply]:
        """The current status of every rank: one reply each."""
        if method != "driftless_status":
            raise errors.InvalidArgumentError(f"{method}: only driftless_status can be asked")
        return json.loads(self.native.ask())

    def prove(self, sweep: bool = True) -> dict[str, Any]:
        """Adds up what every rank holds, and compares it with the version's digests. Returns
        {"verdict": "proven" | "differs" | "cannot tell", "why", "sum", "digest", "version", "run",
        "proven", "differing", "cannot_tell", "tensors": the tensors that are not proven}. With
        `sweep` the ranks read all their weights now; without it they use the sums that they
        keep."""
        return json.loads(self.native.prove(sweep))

    def places(self, checkpoint: str | PathLike[str], limit: int = 16) -> list[dict[str, Any]]:
        """Up to `limit` elements at which the ranks' weights differ from a checkpoint of their
        version: [{"tensor", "position", "rank", "parameter", "value", "expected"}]. The ranks read
        their weights now, whatever version they report."""
        return json.loads(self.native.places(fspath(checkpoint), limit))

    def close(self) -> None:
        """Resumes an engine that an update left paused, if its ranks hold one version."""
        result_of(self.native.close())


def result_of(text: str) -> dict[str, Any]:
    done = json.loads(text)
    if not done["ok"]:
        raise EngineError(done["error"], done["replies"], done["left_paused"])
    return done
