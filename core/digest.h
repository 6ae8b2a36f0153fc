// SPDX-License-Identifier: Apache-2.0
// The digest of a policy's weights: 2 x 61 bits, additive, position-sensitive.
//
// Definition. Let p = 2^61 - 1. A tensor's bytes are read as little-endian 32-bit words (the last
// one filled up with zero bytes); word w lies in block b = w / 1024 at place o = w % 1024. Lane L
// of the digest of a policy is the sum over all tensors and words of
//
//     block_key(tensor, b, L) * place_key(o, L) * word      (mod p)
//
// place_key() is a table of 1024 numbers below 2^56. block_key() is a number below p, mixed from
// the tensor's name and b. Both are fixed for ever. So a sweep costs a multiplication per word and
// lane and a mix per 4096 bytes; digests of disjoint pieces add up in any order; and a changed unit
// changes the digest by a term of its own. It guards against faults, not against attackers: two
// different contents agree with a probability of about 2^-112 per pair.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/hash128.h"
#include "core/status.h"

namespace driftless {

inline constexpr std::uint64_t kDigestPrime = (std::uint64_t{1} << 61) - 1;
inline constexpr std::size_t kDigestLanes = 2;
inline constexpr std::size_t kDigestWordBytes = 4;
inline constexpr std::size_t kDigestBlockWords = 1024;
inline constexpr std::size_t kDigestBlockBytes = kDigestBlockWords * kDigestWordBytes;

// Arithmetic modulo p. Operands and results are below p, except where noted.
[[nodiscard]] constexpr std::uint64_t digest_fold(std::uint64_t x) {  // any x
  x = (x & kDigestPrime) + (x >> 61);
  return x >= kDigestPrime ? x - kDigestPrime : x;
}
[[nodiscard]] constexpr std::uint64_t digest_add(std::uint64_t a, std::uint64_t b) {
  const std::uint64_t sum = a + b;
  return sum >= kDigestPrime ? sum - kDigestPrime : sum;
}
[[nodiscard]] constexpr std::uint64_t digest_subtract(std::uint64_t a, std::uint64_t b) {
  return a >= b ? a - b : a + kDigestPrime - b;
}
[[nodiscard]] constexpr std::uint64_t digest_multiply(std::uint64_t a, std::uint64_t b) {
  const unsigned __int128 product = static_cast<unsigned __int128>(a) * b;
  const std::uint64_t low = static_cast<std::uint64_t>(product) & kDigestPrime;
  const auto high = static_cast<std::uint64_t>(product >> 61);
  return digest_add(digest_fold(low), digest_fold(high));
}

struct Digest {
  std::array<std::uint64_t, kDigestLanes> lanes{};  // each below p

  Digest& operator+=(const Digest& other);
  Digest& operator-=(const Digest& other);
  friend Digest operator+(Digest a, const Digest& b) { return a += b; }
  friend Digest operator-(Digest a, const Digest& b) { return a -= b; }
  friend bool operator==(const Digest&, const Digest&) = default;
};

// 32 lowercase hexadecimal digits, lane 0 first.
[[nodiscard]] std::string to_hex(const Digest& digest);
[[nodiscard]] Result<Digest> digest_from_hex(std::string_view text);

// Identifies a tensor in block_key(): computed once from its name, then passed by value.
struct DigestTensorKey {
  Hash128 name_hash;
  bool operator==(const DigestTensorKey&) const = default;
};
[[nodiscard]] DigestTensorKey digest_tensor_key(std::string_view tensor_name);

// The finalizer of SplitMix64: a bijection of 64 bits in which every input bit reaches every output
// bit. Keys are made with it.
[[nodiscard]] constexpr std::uint64_t digest_mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}
inline constexpr std::uint64_t kDigestGolden = 0x9e3779b97f4a7c15ULL;

[[nodiscard]] constexpr std::uint64_t digest_block_key(const DigestTensorKey& tensor,
                                                       std::uint64_t block, std::size_t lane) {
  const std::uint64_t half = lane == 0 ? tensor.name_hash.high : tensor.name_hash.low;
  return digest_fold(digest_mix(digest_mix(half + (block + 1) * kDigestGolden) ^ (lane + 1)));
}

// The halves of place_key(place, lane): bits 0-27 and 32-59.
[[nodiscard]] constexpr std::uint64_t digest_place_halves(std::size_t lane, std::size_t place) {
  constexpr std::uint64_t kHalves = 0x0fffffff0fffffffULL;
  return digest_mix((lane * kDigestBlockWords + place + 1) * kDigestGolden) & kHalves;
}

// place_key(o, L) = low[L][o] + high[L][o] * 2^28, both halves below 2^28, so that 16 products with
// 32-bit words fit a 64-bit sum.
struct DigestPlaceKeys {
  alignas(64) std::array<std::array<std::uint32_t, kDigestBlockWords>, kDigestLanes> low;
  alignas(64) std::array<std::array<std::uint32_t, kDigestBlockWords>, kDigestLanes> high;

  [[nodiscard]] std::uint64_t at(std::size_t lane, std::size_t place) const {
    return low[lane][place] + (std::uint64_t{high[lane][place]} << 28);
  }
};
[[nodiscard]] const DigestPlaceKeys& digest_place_keys();

}  // namespace driftless
