// SPDX-License-Identifier: Apache-2.0
// xxh3-128 of bytes in device memory, the same bits as core/hash128.h computes on the host
// (library driftless_kernels_cuda).
//
// The hash of a long input is a chain, but what a block of 1024 bytes adds to it does not depend on
// what came before: all blocks are summed up at once, at the speed of memory, and one warp for each
// stretch then walks the chain of their sums, 64 bytes for each block.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "core/hash128.h"
#include "core/status.h"

namespace driftless {

// Of each stretch, on the current device. Stretches may be of any size and alignment; workspace of
// 1/16 of their bytes is taken from the device for the time of the call. Returns once they are
// known; other streams are not waited for, so the bytes must be there. From any thread.
[[nodiscard]] Result<std::vector<Hash128>> device_xxh3_128(
    std::span<const std::span<const std::byte>> stretches);

}  // namespace driftless
