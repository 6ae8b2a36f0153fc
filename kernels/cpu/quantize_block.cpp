// SPDX-License-Identifier: Apache-2.0
// Compiled once per SIMD target: see operations.h before adding an include. The compiler makes
// vectors of the loops over a block's row by itself.
#include <cstdint>

#include "kernels/cpu/operations.h"

namespace driftless::cpu::DRIFTLESS_SIMD_TARGET {
namespace {

constexpr std::uint32_t kMagnitude = 0x7fffffffU, kExponent = 0x7f800000U;
constexpr std::uint32_t kMost = 0x43e00000U;         // 448
constexpr std::uint32_t kLeastNormal = 0x3c800000U;  // 2^-6, of E4M3
constexpr std::uint64_t kRow = 128;                  // of a whole block

inline std::uint16_t load_16(const unsigned char* at) {
  std::uint16_t bits;
  __builtin_memcpy(&bits, at, sizeof(bits));
  return bits;
}

// The E4M3 nearest to `value`. With the exponent e, of -6 at least, E4M3 has steps of 2^(e-3), and
// so have floats next to 2^(e+20): adding that rounds. A code is 8 for each exponent above -6 and
// its steps; below 8 it counts steps alone, so that to double it is to add min(code, 8).
inline unsigned char e4m3_of(float value, std::uint32_t most_added) {
  const auto bits = __builtin_bit_cast(std::uint32_t, value);
  const std::uint32_t whole = bits & kMagnitude;
  const std::uint32_t size = whole > kMost ? kMost : whole;
  const std::uint32_t found = size & kExponent;
  const std::uint32_t exponent = found < kLeastNormal ? kLeastNormal : found;
  const std::uint32_t rounds = exponent + (20U << 23);
  const float sum = __builtin_bit_cast(float, size) + __builtin_bit_cast(float, rounds);
  const std::uint32_t steps = __builtin_bit_cast(std::uint32_t, sum) - rounds;
  std::uint32_t code = steps + (exponent >> 20) - (kLeastNormal >> 20);
  code += code < most_added ? code : most_added;
  code |= (bits >> 24) & 0x80U;
  return static_cast<unsigned char>(whole > kExponent ? 0x7fU : code);
}

template <bool kDivides>
inline void code_row(const CodeRule& rule, const unsigned char* __restrict from,
                     unsigned char* __restrict to) {
  const float factor = rule.factor;
  const std::uint32_t most_added = rule.most_added;
  for (std::uint64_t j = 0; j < kRow; ++j) {
    const auto weight = __builtin_bit_cast(float, std::uint32_t{load_16(from + 2 * j)} << 16);
    to[j] = e4m3_of(kDivides ? weight / factor : weight * factor, most_added);
  }
}

inline void code_row_by(const CodeRule& rule, const unsigned char* from, unsigned char* to) {
  if (rule.divides) {
    code_row<true>(rule, from, to);
  } else {
    code_row<false>(rule, from, to);
  }
}

inline void largest_of_row(const unsigned char* __restrict from, std::int16_t* __restrict largest) {
  for (std::uint64_t j = 0; j < kRow; ++j) {
    const auto size = static_cast<std::int16_t>(load_16(from + 2 * j) & 0x7fff);
    const std::int16_t counts = size <= 0x7f80 ? size : std::int16_t{0};  // a NaN does not
    largest[j] = largest[j] < counts ? counts : largest[j];
  }
}

}  // namespace

void largest_bf16(const void* weights, std::uint32_t rows, std::uint32_t columns,
                  std::uint64_t stride, Strip& strip, std::uint16_t* largest) {
  const auto* row = static_cast<const unsigned char*>(weights);
  std::int16_t found[kStripBlocks][kRow] = {};
  const std::uint64_t bytes = std::uint64_t{columns} * 2;
  for (std::uint32_t i = 0; i < rows; ++i, row += stride * 2) {
    __builtin_memcpy(strip.rows[i], row, bytes);
    if (columns % kRow != 0)
      __builtin_memset(strip.rows[i] + bytes, 0, sizeof(strip.rows[i]) - bytes);
    for (std::uint64_t block = 0; block * kRow < columns; ++block) {
      largest_of_row(strip.rows[i] + block * kRow * 2, found[block]);
    }
  }
  for (std::uint64_t block = 0; block * kRow < columns; ++block) {
    std::int16_t most = 0;
    for (const std::int16_t each : found[block]) most = most < each ? each : most;
    largest[block] = static_cast<std::uint16_t>(most);
  }
}

void codes_of_bf16(const CodeRule* rules, const Strip& strip, std::uint32_t rows,
                   std::uint32_t columns, std::uint64_t stride, void* codes) {
  auto* to = static_cast<unsigned char*>(codes);
  unsigned char coded[kRow];
  const std::uint64_t whole = columns / kRow, rest = columns % kRow;
  for (std::uint32_t i = 0; i < rows; ++i, to += stride) {
    for (std::uint64_t block = 0; block < whole; ++block) {
      code_row_by(rules[block], strip.rows[i] + block * kRow * 2, to + block * kRow);
    }
    if (rest == 0) continue;
    code_row_by(rules[whole], strip.rows[i] + whole * kRow * 2, coded);
    __builtin_memcpy(to + whole * kRow, coded, rest);
  }
}

}  // namespace driftless::cpu::DRIFTLESS_SIMD_TARGET
