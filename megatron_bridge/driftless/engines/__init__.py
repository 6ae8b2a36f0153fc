"""Rollout engines that follow a run: the part that lives inside the engine's process.

`vllm`, `sglang` and `transformers` are adapters; docs/engines.md tells how they are used. Importing
this needs none of them.
"""

from __future__ import annotations

from typing import Any

__all__ = ["ModuleTarget", "Way"]


def __getattr__(name: str) -> Any:
    if name in __all__:  # needs torch
        from . import module_target

        return getattr(module_target, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
