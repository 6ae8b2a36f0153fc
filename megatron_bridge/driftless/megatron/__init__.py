# SPDX-License-Identifier: Apache-2.0
"""Delta weight updates for Megatron. Two lines in a training script:

    driftless.megatron.add_arguments(parser)
    driftless.megatron.attach(model, optimizer, args)

or no line: `python -m driftless.megatron pretrain_gpt.py ARGS...`. See docs/start/megatron.md.
Importing this package needs neither torch nor Megatron.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .arguments import Options, add_arguments, before_read, load_config, options_from
from .checks import check_arguments
from .errors import MapError, SyncError

if TYPE_CHECKING:
    from .callback import WeightUpdates
    from .hook import attach
    from ..torch_group import torch_environment
    from .session import Session

__all__ = [
    "MapError",
    "Options",
    "Session",
    "SyncError",
    "WeightUpdates",
    "add_arguments",
    "attach",
    "before_read",
    "check_arguments",
    "load_config",
    "options_from",
    "torch_environment",
]

_LATER = {
    "attach": ".hook",
    "Session": ".session",
    "torch_environment": "..torch_group",
    "WeightUpdates": ".callback",
}


def __getattr__(name: str) -> Any:
    """Imports members that need torch on first use."""
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_LATER[name], __name__), name)
