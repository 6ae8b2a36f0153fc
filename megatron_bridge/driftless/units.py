# SPDX-License-Identifier: Apache-2.0
"""Sizes and durations as `Config.settings()` says them."""

from __future__ import annotations

_BYTES = (("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30), ("TiB", 1 << 40))
_SECONDS = (("ms", 0.001), ("min", 60.0), ("h", 3600.0), ("s", 1.0))


def bytes_of(text: str) -> int:
    for unit, factor in _BYTES:
        if text.endswith(unit):
            return int(text.removesuffix(unit)) * factor
    return int(text)


def seconds_of(text: str) -> float:
    for unit, factor in _SECONDS:
        if text.endswith(unit):
            return float(text.removesuffix(unit)) * factor
    return float(text)
