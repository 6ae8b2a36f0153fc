# SPDX-License-Identifier: Apache-2.0
"""How the values of one checkpoint tensor get into a module."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

WayName = Literal["direct", "plan", "masked", "whole", "reload", "refused"]


@dataclass(frozen=True)
class Way:
    """`way` is one of

    - direct: the parameter is the tensor;
    - plan: strided maps, traced from the module's loader, write the tensor into parameters;
    - masked: the module's loader, with copies that write only the changed values;
    - whole: the module's loader, with the whole tensor;
    - reload: the engine loads the tensor's modules again, from whole tensors;
    - refused: a version that changes the tensor is refused.

    `reason` says why no better way is possible; `parameter` names the destinations, with commas.
    """

    way: WayName
    reason: str = ""
    parameter: str = ""
