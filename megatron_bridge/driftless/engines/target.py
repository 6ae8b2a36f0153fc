# SPDX-License-Identifier: Apache-2.0
"""The interface between a rank's receiver (rank_receiver.py) and the engine's weights."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

from .ways import Way


class EngineTarget(Protocol):
    """`native`: the target that a driftless.Receiver writes into. `ways`: how each tensor gets into
    the engine. `reads`: whether staging has begun to read the weights since it was set to False.
    `unread`: why the engine computes with other values than `native` holds ("": it does not)."""

    reads: bool
    unread: str

    @property
    def native(self) -> Any: ...

    @property
    def ways(self) -> Mapping[str, Way]: ...

    def written(self) -> None:
        """`native` has changed: loads its values into the engine."""

    def follow(self, digests: Mapping[str, str] | None) -> list[str]:
        """Finds what the engine did to its tensors since the last call, and follows it."""

    def note_sleep(self, level: int) -> None:
        """The engine releases the memory of its weights; at level 2 also their values."""

    def note_wake(self) -> None: ...


class HeldTarget:
    """Weights that the engine never moves. It reads them in place, or as written() loads them."""

    unread = ""

    def __init__(self, native: Any, ways: Mapping[str, Way] = MappingProxyType({})) -> None:
        self.native, self.ways, self.reads = native, ways, False

    def written(self) -> None:
        pass

    def follow(self, digests: Mapping[str, str] | None) -> list[str]:
        return []

    def note_sleep(self, level: int) -> None:
        pass

    def note_wake(self) -> None:
        pass


def checkpoint_directory(model: str, revision: str | None = None) -> str:
    """The directory of a model's checkpoint: `model` itself, or its copy in the hub's cache."""
    if Path(model).is_dir():
        return model
    from huggingface_hub import snapshot_download

    return snapshot_download(model, revision=revision, local_files_only=True)
