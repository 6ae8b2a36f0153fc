// SPDX-License-Identifier: Apache-2.0
// The host's part of device_xxh3_128(): the constants of XXH3, and the end of a hash. The device
// sums the first blocks; the xxhash library itself computes the rest, from the state that the
// device has reached.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "core/hash128.h"

namespace driftless {

inline constexpr std::uint64_t kXxhBlockBytes = 1024;  // 16 stripes of 64
inline constexpr unsigned kXxhSecretWords = 24;        // of 8 bytes
inline constexpr unsigned kXxhScrambleWord = 16;       // first of the eight words for scrambling
inline constexpr std::uint64_t kXxhScramblePrime = 0x9E3779B1U;

struct XxhSecret {
  std::uint64_t words[kXxhSecretWords];
};
using XxhAccumulators = std::array<std::uint64_t, 8>;

[[nodiscard]] XxhSecret xxh_secret();
[[nodiscard]] XxhAccumulators xxh_first_accumulators();
// The number of whole blocks that the device takes from `bytes`: none of a short input, otherwise
// all but one or two, so that the rest has the bytes that the last stripe needs.
[[nodiscard]] std::uint64_t xxh_device_blocks(std::uint64_t bytes);
// `tail` holds all bytes after those blocks.
[[nodiscard]] Hash128 xxh_finish(const XxhAccumulators& accumulators, std::uint64_t blocks,
                                 std::span<const std::byte> tail);

}  // namespace driftless
