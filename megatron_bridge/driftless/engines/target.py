# SPDX-License-Identifier: Apache-2.0
"""What a rank's receiver (rank_receiver.py) asks of the engine's weights."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

from .ways import Way


class EngineTarget(Protocol):
    """`native` is what a driftless.Receiver writes into, `ways` how each tensor gets into the engine,
    `reads` whether a staging has begun to read the weights, since it was set to False, and `unread`
    why the engine computes with something else than lies in `native` ("": it does not)."""

    reads: bool
    unread: str

    @property
    def native(self) -> Any: ...

    @property
    def ways(self) -> Mapping[str, Way]: ...

    def written(self) -> None:
        """`native` has changed: the engine takes what it holds."""

    def follow(self, digests: Mapping[str, str] | None) -> list[str]:
        """What the engine did to its tensors since the last time, which is followed."""

    def note_sleep(self, level: int) -> None:
        """The engine gives up the memory of its weights; level 2: and their values."""

    def note_wake(self) -> None: ...


class HeldTarget:
    """Weights that the engine reads where the receiver writes them, and leaves there."""

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
    """Where a model's checkpoint is: the directory itself, or what the hub's cache has."""
    if Path(model).is_dir():
        return model
    from huggingface_hub import snapshot_download

    return snapshot_download(model, revision=revision, local_files_only=True)
