# SPDX-License-Identifier: Apache-2.0
"""torch's dtypes by their names in safetensors."""

from __future__ import annotations

import torch

from ._native import TORCH_NAMES

TORCH_DTYPES: dict[str, torch.dtype] = {
    name: getattr(torch, theirs) for name, theirs in TORCH_NAMES.items() if hasattr(torch, theirs)
}
_NAMES = {dtype: name for name, dtype in TORCH_DTYPES.items()}


def dtype_name(dtype: torch.dtype) -> str:
    """The name in safetensors, or torch's own name if there is none."""
    return _NAMES.get(dtype, str(dtype).removeprefix("torch."))
