"""Errors of the Megatron side. They are `driftless.Error`s, and `ValueError`s."""

from __future__ import annotations

try:
    from .._native import Error
except ImportError:  # maps can be read where the module was not built

    class Error(Exception):  # type: ignore[no-redef]
        pass


class MapError(Error, ValueError):
    """A model, a parameter or a parallel layout that the maps do not cover."""

    code = "invalid_argument"


class SyncError(Error, RuntimeError):
    """Weights that could not be brought to the receivers; training goes on."""

    code = "failed"
