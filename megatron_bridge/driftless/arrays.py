# SPDX-License-Identifier: Apache-2.0
"""Tensors of driftless as arrays of others. numpy and torch are imported when they are asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._native import TensorRef

# Types that numpy has not come as their bits; ml_dtypes would name them.
_TORCH_NAMES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E8M0": "float8_e8m0fnu",
    "I16": "int16",
    "U16": "uint16",
    "F16": "float16",
    "BF16": "bfloat16",
    "I32": "int32",
    "U32": "uint32",
    "F32": "float32",
    "F64": "float64",
    "I64": "int64",
    "U64": "uint64",
    "C64": "complex64",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
}


def to_numpy(ref: TensorRef) -> Any:
    """A view; read-only where the tensor is. BF16 and the 8-bit floats appear as unsigned bits."""
    import numpy

    return numpy.asarray(memoryview(ref))


def _bytes_of(ref: TensorRef) -> TensorRef:
    """The same memory without a type: DLPack names not all of them everywhere."""
    from ._native import TensorRef

    size = [ref.size_bytes]
    return TensorRef.from_pointer(ref.data_address, "U8", size, device=ref.device, owner=ref)


def to_torch(ref: TensorRef) -> Any:
    """A view, of torch's own type. torch knows no read-only tensors: what is read-only here must
    not be written through it."""
    import warnings

    import torch

    name = _TORCH_NAMES.get(ref.dtype)
    dtype = getattr(torch, name, None) if name else None
    if dtype is None:
        from .errors import UnsupportedError

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
