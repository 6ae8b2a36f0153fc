// SPDX-License-Identifier: Apache-2.0
// Reads what a mapped target holds of one tensor, so that it can be compared with a checkpoint unit
// by unit: digests of its blocks, which add up over ranks, and the values of a few units.
#pragma once

#include "plugin/targets/mapped_weights.h"

namespace driftless {

// Reads each place of the tensor once, if it can be read back. Returns one digest for each block of
// `block_units` units, and the blocks that differ between places or have foreign bits.
[[nodiscard]] Result<BlockSums> sum_blocks(const MappedWeights& weights, std::uint32_t tensor,
                                           std::uint64_t block_units);
// The values of units [first, first + count), at each place that can be read back.
[[nodiscard]] Result<std::vector<HeldCopy>> read_copies(const MappedWeights& weights,
                                                        std::uint32_t tensor, std::uint64_t first,
                                                        std::uint64_t count);

}  // namespace driftless
