# SPDX-License-Identifier: Apache-2.0
"""Rollout engines that follow a trainer: versions are written into an engine's own parameters.

Importing this package needs no torch; its members need it, and import it on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .ways import Way

if TYPE_CHECKING:
    from .module_target import ModuleTarget

__all__ = ["ModuleTarget", "Way"]


def __getattr__(name: str) -> Any:
    if name == "ModuleTarget":
        from .module_target import ModuleTarget

        return ModuleTarget
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
