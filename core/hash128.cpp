// SPDX-License-Identifier: Apache-2.0
#include "core/hash128.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "core/environment.h"

namespace driftless {
namespace {

constexpr std::string_view kHexDigits = "0123456789abcdef";

}  // namespace

std::string to_hex(const Hash128& hash) {
  std::string text(32, '0');
  for (std::size_t i = 0; i < 16; ++i) {
    text[15 - i] = kHexDigits[(hash.high >> (4 * i)) & 15U];
    text[31 - i] = kHexDigits[(hash.low >> (4 * i)) & 15U];
  }
  return text;
}

Result<Hash128> hash128_from_hex(std::string_view text) {
  Hash128 hash;
  if (text.size() != 32) {
    return error(StatusCode::kCorrupt, "expected 32 hexadecimal digits, found ", text.size(),
                 " characters");
  }
  for (std::size_t i = 0; i < text.size(); ++i) {
    const std::size_t digit = kHexDigits.find(text[i]);
    if (digit == std::string_view::npos) {
      return error(StatusCode::kCorrupt, "expected lowercase hexadecimal digits, found '", text,
                   "'");
    }
    std::uint64_t& half = i < 16 ? hash.high : hash.low;
    half = (half << 4) | digit;
  }
  return hash;
}

Hash128 xxh3_128(std::span<const std::byte> bytes) {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return {hash.high64, hash.low64};
}

Hash128 xxh3_128(std::string_view text) {
  return xxh3_128(std::as_bytes(std::span(text.data(), text.size())));
}

Hash128 random_hash128() { return environment().random(); }

}  // namespace driftless
