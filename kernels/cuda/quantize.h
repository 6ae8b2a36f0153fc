// SPDX-License-Identifier: Apache-2.0
// Quantization of matrices in device memory: the GPU's peer of kernels/quantize.h, batched. The
// conventions are those of kernels/cuda/operations.h.
#pragma once

#include <span>

#include "kernels/cuda/operations.h"
#include "kernels/quantize.h"

namespace driftless::cuda {

// As Quantizer::part takes them, each pointer into device memory. Weights lie at a multiple of 2.
// The fast case: weights at a multiple of 16, codes at one of 8, the stride, the columns and the
// column of the first weight multiples of 8.
struct QuantizePart {
  MatrixPart part;
  const std::byte* weights_dev = nullptr;
  std::uint16_t* largest_dev = nullptr;
  std::byte* codes_dev = nullptr;  // null: only the largest magnitudes
};

// 80 bytes for each part, 4 for each block that parts touch; the same of pinned memory.
[[nodiscard]] WorkspaceSize quantize_workspace_size(std::span<const QuantizePart> parts);
// One launch for all parts, which write nothing that another one reads or writes. The workspace is
// free again once the work is done.
[[nodiscard]] Status quantize(QuantizeRule rule, std::span<const QuantizePart> parts,
                              const Workspace& workspace, Stream stream);

}  // namespace driftless::cuda
