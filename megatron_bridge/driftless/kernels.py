"""Work on the elements of tensors in host memory, by their bits.

Positions count units: the element itself, or the byte for types of less than 8 bits. Tensors are
anything that driftless takes: numpy, torch, DLPack, the buffer protocol, TensorRef.
"""

from ._native import diff, gather, masked_overwrite, scatter
from ._native import digest_tensor as digest

__all__ = ["diff", "digest", "gather", "masked_overwrite", "scatter"]
