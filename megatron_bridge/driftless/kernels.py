# SPDX-License-Identifier: Apache-2.0
"""Work on the elements of tensors, by their bits: in host memory, or on a GPU if the build has CUDA.

Positions count units: the element itself, or the byte for types of less than 8 bits. Tensors are
anything that driftless takes: numpy, torch, DLPack, the buffer protocol, TensorRef; all of a call on
one device. For CUDA tensors `stream` is the number of a cudaStream_t
(torch.cuda.current_stream().cuda_stream; None: the default stream): the work comes after what is
queued there, and is done when the call returns. Their positions ascend, also in gather().
"""

from ._native import diff, gather, masked_overwrite, scatter
from ._native import digest_tensor as digest

__all__ = ["diff", "digest", "gather", "masked_overwrite", "scatter"]
