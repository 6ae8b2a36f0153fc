// SPDX-License-Identifier: Apache-2.0
// A 128-bit value: a hash, a layout signature, a run id. Compared and printed, never interpreted.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "core/status.h"

namespace driftless {

struct Hash128 {
  std::uint64_t high = 0;
  std::uint64_t low = 0;

  auto operator<=>(const Hash128&) const = default;
  [[nodiscard]] bool is_zero() const { return high == 0 && low == 0; }
};

// Lowercase hexadecimal digits, two for each byte.
[[nodiscard]] std::string to_hex(std::span<const std::byte> bytes);
// 32 of them, most significant first (the canonical form of XXH3).
[[nodiscard]] std::string to_hex(const Hash128& hash);
// kCorrupt unless `text` is exactly 32 lowercase hexadecimal digits.
[[nodiscard]] Result<Hash128> hash128_from_hex(std::string_view text);

// XXH3-128 with seed 0.
[[nodiscard]] Hash128 xxh3_128(std::span<const std::byte> bytes);
[[nodiscard]] Hash128 xxh3_128(std::string_view text);

// 128 bits from the operating system's random source: the id of a new run.
[[nodiscard]] Hash128 random_hash128();

}  // namespace driftless
