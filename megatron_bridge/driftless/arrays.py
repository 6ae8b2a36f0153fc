# SPDX-License-Identifier: Apache-2.0
"""Views of TensorRef as numpy arrays and torch tensors. Each library is imported on first use."""

from __future__ import annotations

from typing import Any

from ._native import TORCH_NAMES, TensorRef
from .errors import UnsupportedError

def to_numpy(ref: Any) -> Any:
    """A view; read-only if the tensor is. BF16 and the 8-bit floats appear as unsigned bits."""
    import numpy

    return numpy.asarray(memoryview(ref))


def _bytes_of(ref: TensorRef) -> TensorRef:
    """The same memory as bytes, because some versions of DLPack lack some dtypes."""
    size = [ref.size_bytes]
    return TensorRef.from_pointer(ref.data_address, "U8", size, device=ref.device, owner=ref)


def to_torch(ref: Any) -> Any:
    """A view in torch's own dtype. torch has no read-only tensors: do not write through a view of a
    read-only TensorRef."""
    import warnings

    import torch

    dtype = getattr(torch, TORCH_NAMES.get(ref.dtype, ""), None)
    if dtype is None:
        raise UnsupportedError(f"torch has no type for {ref.dtype}")
    if ref.size_bytes == 0:
        return torch.empty(ref.shape, dtype=dtype, device=ref.device)
    if ref.device != "cpu":
        flat = torch.from_dlpack(_bytes_of(ref))
        return flat.view(dtype).reshape(ref.shape)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given buffer is not writable")
        flat = torch.frombuffer(memoryview(ref).cast("B"), dtype=torch.uint8)
    return flat.view(dtype).reshape(ref.shape)
