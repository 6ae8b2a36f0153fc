// SPDX-License-Identifier: Apache-2.0
// The host's share of device_xxh3_128(): the constants of XXH3, and the end of a hash whose first
// blocks were taken by the device. The library itself computes it, from a state that is set to
// where the device stopped.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "core/hash128.h"

namespace driftless {

inline constexpr std::uint64_t kXxhBlockBytes = 1024;  // 16 stripes of 64
inline constexpr unsigned kXxhSecretWords = 24;        // of 8 bytes
inline constexpr unsigned kXxhScrambleWord = 16;       // the first of the eight that scramble
inline constexpr std::uint64_t kXxhScramblePrime = 0x9E3779B1U;

struct XxhSecret {
  std::uint64_t words[kXxhSecretWords];
};
using XxhAccumulators = std::array<std::uint64_t, 8>;

[[nodiscard]] XxhSecret xxh_secret();
[[nodiscard]] XxhAccumulators xxh_first_accumulators();
// How many whole blocks of so many bytes the device takes: none of a short input, else all but one
// or two, so that the end has what the last stripe needs.
[[nodiscard]] std::uint64_t xxh_device_blocks(std::uint64_t bytes);
// `tail`: all bytes after those blocks.
[[nodiscard]] Hash128 xxh_finish(const XxhAccumulators& accumulators, std::uint64_t blocks,
                                 std::span<const std::byte> tail);

}  // namespace driftless
