# SPDX-License-Identifier: Apache-2.0
"""What a rank's receiver (rank_receiver.py) asks of the engine's weights."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Protocol

from .ways import Way


class EngineTarget(Protocol):
    """`native` is what a driftless.Receiver writes into, `ways` how each tensor gets into the engine,
    and `reads` whether a staging has begun to read the weights, since it was set to False."""

    reads: bool

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

    def shares(self, sweep: bool) -> Any:
        """(tensors, unproven), of what the engine computes with: read now, or tracked."""


class HeldTarget:
    """Weights that the engine reads where the receiver writes them, and leaves there."""

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

    def shares(self, sweep: bool) -> Any:
        return self.native.sweep() if sweep else self.native.tracked()
