// SPDX-License-Identifier: Apache-2.0
// Compiled once per SIMD target: see operations.h before adding an include. The compiler vectorizes
// the loops over a block's row.
#include <cstdint>

#include "kernels/cpu/operations.h"

namespace driftless::cpu::DRIFTLESS_SIMD_TARGET {
namespace {

constexpr std::uint64_t kRow = 128;  // weights in a row of a whole block

inline std::uint16_t load_16(const unsigned char* at) {
  std::uint16_t bits;
  __builtin_memcpy(&bits, at, sizeof(bits));
  return bits;
}

template <bool kDivides>
inline void code_row(const CodeRule& rule, const unsigned char* __restrict from,
                     unsigned char* __restrict to) {
  const float factor = rule.factor;
  const std::uint32_t most_added = rule.most_added;
  for (std::uint64_t j = 0; j < kRow; ++j) {
    to[j] = code_of_bf16<kDivides>(load_16(from + 2 * j), factor, most_added);
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
    const std::int16_t counts = size <= 0x7f80 ? size : std::int16_t{0};  // a NaN does not count
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
