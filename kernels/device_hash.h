// SPDX-License-Identifier: Apache-2.0
// xxh3-128 of bytes in device memory, with the same result as core/hash128.h on the host (library
// driftless_kernels_cuda).
//
// The hash of a long input is a chain, but the contribution of each block of 1024 bytes does not
// depend on the blocks before it. So all blocks are summed at once, at memory speed; then one warp
// for each stretch walks the chain of the sums, 64 bytes for each block.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "core/hash128.h"
#include "core/status.h"

namespace driftless {

// Hashes each stretch on the current device. Stretches may have any size and alignment. Allocates
// workspace of 1/16 of their bytes on the device during the call. Returns when the hashes are
// known. Does not wait for other streams, so the bytes must already be there. Thread-safe.
[[nodiscard]] Result<std::vector<Hash128>> device_xxh3_128(
    std::span<const std::span<const std::byte>> stretches);

}  // namespace driftless
