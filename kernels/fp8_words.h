// SPDX-License-Identifier: Apache-2.0
// Operations of fp8_code.h on two bfloat16 weights, or four E4M3 codes, in a word of 32 bits; the
// first one is lowest. For the host and for device code.
#pragma once

#include <cstdint>

namespace driftless {

// size_of_bf16() of both weights.
inline constexpr std::uint32_t sizes_of_two(std::uint32_t weights) {
  const std::uint32_t sizes = weights & 0x7fff7fffU;
  // A NaN, a size above 0x7f80, sets bit 15.
  const std::uint32_t nans = ((sizes + 0x007f007fU) & 0x80008000U) >> 15;
  return sizes & ~(nans * 0xffffU);
}

// The larger of both values in each half; sizes have 15 bits.
inline constexpr std::uint32_t larger_of_two(std::uint32_t a, std::uint32_t b) {
  const std::uint32_t not_less = (((a | 0x80008000U) - b) & 0x80008000U) >> 15;
  const std::uint32_t mask = not_less * 0xffffU;
  return (a & mask) | (b & ~mask);
}

inline constexpr std::uint16_t larger_half(std::uint32_t sizes) {
  const std::uint32_t low = sizes & 0xffffU, high = sizes >> 16;
  return static_cast<std::uint16_t>(low < high ? high : low);
}

// Applies CodeRule::most_added = 8: the codes then stand for twice the value. A NaN stays a NaN;
// other codes must be at most 0x76.
inline constexpr std::uint32_t doubled_codes(std::uint32_t codes) {
  const std::uint32_t sizes = codes & 0x7f7f7f7fU;
  const std::uint32_t large = (((sizes + 0x78787878U) & 0x80808080U) >> 7) * 0xffU;  // 8 or more
  const std::uint32_t nans = (((sizes + 0x01010101U) & 0x80808080U) >> 7) * 0xffU;
  const std::uint32_t added = ((large & 0x08080808U) | (sizes & ~large)) & ~nans;
  return codes + added;
}

}  // namespace driftless
