// SPDX-License-Identifier: Apache-2.0
// What a mapped target holds of one tensor, to be compared with a checkpoint unit by unit: digests
// of its blocks, which add up over ranks, and the values of a few units.
#pragma once

#include "plugin/targets/mapped_weights.h"

namespace driftless {

// `block_units` at a time: a digest for each block of the tensor, and which blocks are not the same
// at two places of this target. Reads the tensor once. kUnsupported if it cannot be read back.
[[nodiscard]] Result<BlockSums> sum_blocks(const MappedWeights& weights, std::uint32_t tensor,
                                           std::uint64_t block_units);
// Units [first, first + count), at each place that can be read back.
[[nodiscard]] Result<std::vector<HeldCopy>> read_copies(const MappedWeights& weights,
                                                        std::uint32_t tensor, std::uint64_t first,
                                                        std::uint64_t count);

}  // namespace driftless
