# SPDX-License-Identifier: Apache-2.0
"""Operations on the stored bits of tensor elements, in host memory or (in builds with CUDA) on a
GPU.

Positions count units: the element itself, or the byte for dtypes below 8 bits. Tensors are anything
that driftless accepts: numpy, torch, DLPack, the buffer protocol, TensorRef. All tensors of one
call are on one device. For CUDA tensors `stream` is the number of a cudaStream_t
(torch.cuda.current_stream().cuda_stream; None: the default stream): the work runs after what is
queued there and is complete when the call returns. Positions on CUDA must ascend, also in gather().
"""

from ._native import diff, gather, masked_overwrite, scatter
from ._native import digest_tensor as digest

__all__ = ["diff", "digest", "gather", "masked_overwrite", "scatter"]
