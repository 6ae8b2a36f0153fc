// SPDX-License-Identifier: Apache-2.0
// The digest on processors: the sweep around a SIMD target's digest_sums(), and the change around
// its digest_steps().
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/digest.h"
#include "kernels/cpu/operations.h"

namespace driftless::cpu {

using DigestSums = decltype(&portable::digest_sums);
using DigestSteps = decltype(&portable::digest_steps);

Digest digest(DigestSums digest_sums, const DigestTensorKey& tensor, std::uint64_t byte_offset,
              std::span<const std::byte> bytes);
// Writes the new values into `units`, too, unless it is null.
Digest digest_change(DigestSteps digest_steps, const DigestTensorKey& tensor, unsigned unit_bytes,
                     std::uint64_t origin, const std::uint32_t* offsets, std::uint64_t count,
                     const void* old_values, const void* new_values, void* units);

}  // namespace driftless::cpu
