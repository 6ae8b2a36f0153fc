// SPDX-License-Identifier: Apache-2.0
// Quantization of matrices in device memory: the GPU version of kernels/quantize.h, in batches. The
// conventions of kernels/cuda/operations.h apply.
#pragma once

#include <span>

#include "kernels/cuda/operations.h"
#include "kernels/quantize.h"

namespace driftless::cuda {

// The arguments of Quantizer::part, with pointers into device memory. Weights must be at a multiple
// of 2 bytes. The fast case: weights at a multiple of 16, codes at a multiple of 8; the stride, the
// columns and the column of the first weight are multiples of 8.
struct QuantizePart {
  MatrixPart part;
  const std::byte* weights_dev = nullptr;
  std::uint16_t* largest_dev = nullptr;
  std::byte* codes_dev = nullptr;  // null: only the largest magnitudes
};

// Device memory: 80 bytes for each part, 4 for each block that parts touch. The same amount of
// pinned host memory.
[[nodiscard]] WorkspaceSize quantize_workspace_size(std::span<const QuantizePart> parts);
// Queues one launch for all parts. No part may write memory that another one reads or writes. The
// workspace is free again once the work is done.
[[nodiscard]] Status quantize(QuantizeRule rule, std::span<const QuantizePart> parts,
                              const Workspace& workspace, Stream stream);

// Quantizer::groups of contiguous groups of `group` weights; queues one launch. Weights and scales
// must be at a multiple of 2 bytes, codes at a multiple of 4. The fast case: weights at a multiple
// of 16.
[[nodiscard]] Status quantize_groups(unsigned group, std::uint64_t groups,
                                     const std::byte* weights_dev, std::byte* packed_dev,
                                     std::byte* scales_dev, Stream stream);

}  // namespace driftless::cuda
