// SPDX-License-Identifier: Apache-2.0
#include "kernels/quantize.h"

#include <algorithm>

#include "core/parallel.h"

namespace driftless {

Status quantize_fp8(const Quantizer& with, QuantizeRule rule, const std::byte* weights,
                    std::uint64_t rows, std::uint64_t columns, unsigned threads, std::byte* codes,
                    std::byte* scales) {
  // A task is a row of blocks.
  return parallel_for(quantize_blocks(rows), threads, [&](std::size_t task, unsigned) {
    const std::uint64_t first = task * kQuantizeBlock;
    with.fp8(rule, weights + first * columns * sizeof(std::uint16_t),
             std::min(kQuantizeBlock, rows - first), columns, codes + first * columns,
             scales + task * quantize_blocks(columns) * sizeof(float));
    return Status();
  });
}

}  // namespace driftless
