// SPDX-License-Identifier: Apache-2.0
// What is done with several values in a word is done with each of them.
#include "kernels/fp8_words.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "kernels/fp8_code.h"

namespace driftless {
namespace {

TEST(Fp8Words, SizesAreThoseOfBothWeights) {
  for (std::uint32_t low = 0; low < 65536; ++low) {
    for (const std::uint32_t high :
         {0U, 0x7f80U, 0x7f81U, 0x8000U, 0xff80U, 0xffffU, low ^ 0x55U}) {
      const std::uint32_t expected = size_of_bf16(static_cast<std::uint16_t>(low)) |
                                     size_of_bf16(static_cast<std::uint16_t>(high)) << 16;
      ASSERT_EQ(sizes_of_two(low | high << 16), expected) << low << " " << high;
    }
  }
}

TEST(Fp8Words, TheLargerOnesAreChosenApart) {
  std::uint32_t random = 1;
  for (int turn = 0; turn < 200'000; ++turn) {
    random = random * 1664525U + 1013904223U;
    const std::uint32_t a = random & 0x7fff7fffU;
    random = random * 1664525U + 1013904223U;
    const std::uint32_t b = turn % 3 == 0 ? a ^ (random & 0x00010001U) : random & 0x7fff7fffU;
    const std::uint32_t expected = std::max(a & 0xffffU, b & 0xffffU) | std::max(a >> 16, b >> 16)
                                                                            << 16;
    ASSERT_EQ(larger_of_two(a, b), expected) << a << " " << b;
    ASSERT_EQ(larger_half(a), std::max(a & 0xffffU, a >> 16)) << a;
  }
}

TEST(Fp8Words, CodesAreDoubledAndNansStay) {
  const auto doubled = [](std::uint32_t code) {
    const std::uint32_t size = code & 0x7fU;
    return size == 0x7fU ? code : code + std::min(size, 8U);
  };
  const auto is_there = [](std::uint32_t code) {
    return (code & 0x7fU) <= 0x76U || (code & 0x7fU) == 0x7fU;
  };
  for (std::uint32_t a = 0; a < 256; ++a) {
    for (std::uint32_t b = 0; b < 256; ++b) {
      if (!is_there(a) || !is_there(b)) continue;
      const std::uint32_t da = doubled(a), db = doubled(b);
      ASSERT_EQ(doubled_codes(a | b << 8 | b << 16 | a << 24), da | db << 8 | db << 16 | da << 24)
          << a << " " << b;
    }
  }
}

// As e4m3_of() adds to a code.
TEST(Fp8Words, DoublesAsTheRuleDefines) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto value = __builtin_bit_cast(float, bits << 16);
    const bool above = (bits & 0x7fffU) > 0x4360U && (bits & 0x7fffU) <= 0x7f80U;  // 224
    if (above) continue;
    ASSERT_EQ(doubled_codes(e4m3_of(value, 0)), e4m3_of(value, 8)) << bits;
  }
}

}  // namespace
}  // namespace driftless
