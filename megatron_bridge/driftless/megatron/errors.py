# SPDX-License-Identifier: Apache-2.0
"""Errors of the Megatron side."""

from __future__ import annotations

from ..errors import Error, InvalidArgumentError


class MapError(InvalidArgumentError):
    """A model, parameter or parallel layout that the maps do not cover, or wrong flags."""


class SyncError(Error, RuntimeError):
    """Weights could not be sent to the receivers."""

    code = "internal"
