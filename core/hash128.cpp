// SPDX-License-Identifier: Apache-2.0
#include "core/hash128.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "core/environment.h"

namespace driftless {
namespace {

constexpr std::string_view kHexDigits = "0123456789abcdef";

}  // namespace

std::string to_hex(std::span<const std::byte> bytes) {
  std::string text;
  text.reserve(2 * bytes.size());
  for (const std::byte byte : bytes) {
    text += kHexDigits[std::to_integer<unsigned>(byte) >> 4];
    text += kHexDigits[std::to_integer<unsigned>(byte) & 15U];
  }
  return text;
}

std::string to_hex(const Hash128& hash) {
  const std::uint64_t big_endian[] = {__builtin_bswap64(hash.high), __builtin_bswap64(hash.low)};
  return to_hex(std::as_bytes(std::span(big_endian)));
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
