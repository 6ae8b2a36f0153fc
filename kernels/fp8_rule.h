// SPDX-License-Identifier: Apache-2.0
// Computes the scale and the code rule of a block from its largest magnitude, by the rules of
// core/quantize_rule.h. For all processors; reference/ has its own, slower version.
#pragma once

#include <bit>

#include "core/quantize_rule.h"
#include "kernels/fp8_code.h"

namespace driftless {

struct Fp8Rule {
  CodeRule codes;
  float scale;
};

// `largest`: the bits of a bfloat16.
[[nodiscard]] constexpr Fp8Rule fp8_rule(QuantizeRule rule, std::uint16_t largest) {
  constexpr float kMostE4M3 = 448, kLeastUe8m0 = 0x1p-22F;
  const auto at_least = [size = std::bit_cast<float>(std::uint32_t{largest} << 16)](float least) {
    return (size < least ? least : size) / kMostE4M3;
  };
  if (rule == QuantizeRule::kLinearDiv) {
    const float scale = at_least(std::bit_cast<float>(0x2b8d0000U));  // 1e-12
    return {{scale, true, 0}, scale};
  }
  if (rule == QuantizeRule::kLinear) {
    const float scale = at_least(1e-10F);
    return {{1 / scale, false, 0}, scale};
  }
  // The smallest power of two that is at least this.
  constexpr std::uint32_t kFraction = 0x7fffffU;
  const auto bits = std::bit_cast<std::uint32_t>(at_least(1e-4F));
  const auto scale = std::bit_cast<float>((bits + kFraction) & ~kFraction);
  const float factor = 1 / scale;
  const float most = std::bit_cast<float>(std::uint32_t{largest} << 16) * factor;
  // A value up to 232, which is half-way to the next code, rounds to 224.
  const bool halves = scale > kLeastUe8m0 && most <= 232;  // false for infinities
  return {{factor, false, halves ? 8U : 0U}, halves ? scale / 2 : scale};
}

}  // namespace driftless
