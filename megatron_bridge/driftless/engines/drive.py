# SPDX-License-Identifier: Apache-2.0
"""Brings all ranks of an engine to a version, or leaves all of them where they were.

The work is the native EngineDriver's (plugin/engines/engine_driver.h); here are its results as
Python objects. An engine is resumed only if all its ranks report the same run, version and digest
and none is torn; else it stays paused, and the error says so.
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
    """An update that did not come about. `replies`: what each rank said last; `versions`: where they
    are; `left_paused`: the engine does not serve."""

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
    """An update that all ranks took. Times are of the driver, in ms."""

    from_version: int
    version: int
    replies: list[Reply]
    timings: dict[str, float] = field(default_factory=dict)


class Driver:
    """One thread at a time."""

    def __init__(self, native: _native.EngineDriver) -> None:
        self.native = native
        self.version = 0

    def open(self) -> list[Reply]:
        """Every rank follows the run. EngineError if what the ranks hold does not add up to the
        version that they name: nothing is built on that."""
        done = result_of(self.native.open())
        self.version = done["version"]
        return done["replies"]

    def start_staging(self, timeout_s: float) -> None:
        result_of(self.native.start_staging(timeout_s))

    def staged(self, timeout_s: float) -> int | None:
        """Waits until every rank has the same version staged; None: nothing newer came."""
        return result_of(self.native.wait_staged(timeout_s))["staged"]

    def update(self, timeout_s: float = 60.0, started: bool = False) -> Update | None:
        """Stages, unless start_staging() has, and commits. None: nothing newer came.
        EngineError: the engine serves what it served before, or, if the error says so, is left
        paused."""
        done = result_of(self.native.update(timeout_s, started))
        if not done["updated"]:
            return None
        self.version = done["version"]
        return Update(done["from_version"], done["version"], done["replies"], done["timings"])

    def ask(self, method: str = "driftless_status") -> list[Reply]:
        """One reply of every rank, each to this question."""
        if method != "driftless_status":
            raise errors.InvalidArgumentError(f"{method}: only driftless_status can be asked")
        return json.loads(self.native.ask())

    def prove(self, sweep: bool = True) -> dict[str, Any]:
        """What every rank holds, added up, and held against the version's digests: {"verdict":
        "proven" | "differs" | "cannot tell", "why", "sum", "digest", "version", "run", "proven",
        "differing", "cannot_tell", "tensors": those that are not proven}. With `sweep` the ranks
        read their weights now."""
        return json.loads(self.native.prove(sweep))

    def places(self, checkpoint: str | PathLike[str], limit: int = 16) -> list[dict[str, Any]]:
        """Where the ranks' weights are not those of a checkpoint of their version, up to `limit`
        elements: [{"tensor", "position", "rank", "parameter", "value", "expected"}]. The ranks read
        their weights now; what they hold does not matter."""
        return json.loads(self.native.places(fspath(checkpoint), limit))

    def close(self) -> None:
        """Resumes what an update left paused, if its ranks hold one version."""
        result_of(self.native.close())


def result_of(text: str) -> dict[str, Any]:
    done = json.loads(text)
    if not done["ok"]:
        raise EngineError(done["error"], done["replies"], done["left_paused"])
    return done
