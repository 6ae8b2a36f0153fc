// SPDX-License-Identifier: Apache-2.0
// Computes an E4M3 code from a bfloat16 weight, for all processors. Uses only integers and floats,
// so that sources of a SIMD target (cpu/operations.h) and device code may include it. Every
// function is internal to the file that includes it.
#pragma once

#include <cstdint>

namespace driftless {

// The factor and the correction that turn weights into codes (core/quantize_rule.h): a weight is
// multiplied by the factor or divided by it. Then min(code, most_added) is added to the code:
// `most_added` is 8 to double the value of a code, otherwise 0.
struct CodeRule {
  float factor;
  bool divides;
  std::uint32_t most_added;
};

// The E4M3 code nearest to `value`. Rounding: for an exponent e of at least -6, E4M3 has steps of
// 2^(e-3), and so have floats near 2^(e+20), so adding such a float rounds. Doubling: a code is the
// number of steps, plus 8 for each exponent above -6, so adding 8 doubles its value. A code below 8
// is only a number of steps, so adding the code to itself doubles its value.
static constexpr unsigned char e4m3_of(float value, std::uint32_t most_added) {
  constexpr std::uint32_t kMagnitude = 0x7fffffffU, kExponent = 0x7f800000U;
  constexpr std::uint32_t kMost = 0x43e00000U;         // 448
  constexpr std::uint32_t kLeastNormal = 0x3c800000U;  // 2^-6, the least normal E4M3
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
static constexpr unsigned char code_of_bf16(std::uint16_t weight, float factor,
                                            std::uint32_t most_added) {
  const auto value = __builtin_bit_cast(float, std::uint32_t{weight} << 16);
  return e4m3_of(kDivides ? value / factor : value * factor, most_added);
}

// The magnitude of a weight for its block's scale; 0 for a NaN, which does not count.
static constexpr std::uint16_t size_of_bf16(std::uint16_t weight) {
  const auto size = static_cast<std::uint16_t>(weight & 0x7fffU);
  return size <= 0x7f80U ? size : std::uint16_t{0};
}

}  // namespace driftless
