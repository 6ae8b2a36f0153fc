# SPDX-License-Identifier: Apache-2.0
"""How the values of one checkpoint tensor get into a module."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

WayName = Literal["direct", "plan", "masked", "whole", "reload", "refused"]


@dataclass(frozen=True)
class Way:
    """`way` is one of

    - direct: a parameter is the tensor;
    - plan: strided maps from the tensor into parameters, traced from the module's loader;
    - masked: the module's loader, whose copies then write the changed values only;
    - whole: the module's loader, with the whole tensor;
    - reload: the engine loads the modules again that it goes to, from whole tensors;
    - refused: a version that changes the tensor cannot be taken.

    `reason` says why it is no better one; `parameter` names where it goes, several with commas.
    """

    way: WayName
    reason: str = ""
    parameter: str = ""
