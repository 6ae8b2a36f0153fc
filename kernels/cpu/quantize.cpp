// SPDX-License-Identifier: Apache-2.0
// A strip of blocks is copied while its largest weights are found: the second look finds it in the
// cache.
#include <algorithm>
#include <bit>
#include <cstring>

#include "kernels/cpu/baseline.h"
#include "kernels/value_cast.h"

namespace driftless::cpu {
namespace {

constexpr float kMostE4M3 = 448;
constexpr float kLeastUe8m0 = 0x1p-22F;

// The smallest power of two of at least `value`, which is positive and not denormal.
float power_above(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  constexpr std::uint32_t kFraction = 0x7fffffU;
  return std::bit_cast<float>((bits + kFraction) & ~kFraction);
}

// Returns the scale.
float rule_of(QuantizeRule rule, float largest, CodeRule& codes) {
  codes = {0, false, 0};
  float scale = 0;
  switch (rule) {
    case QuantizeRule::kLinear: scale = std::max(largest, 1e-10F) / kMostE4M3; break;
    case QuantizeRule::kLinearDiv:
      scale = std::max(largest, std::bit_cast<float>(f32_of_bf16(0x2b8d))) / kMostE4M3;
      codes.factor = scale;
      codes.divides = true;
      return scale;
    case QuantizeRule::kUe8m0: scale = power_above(std::max(largest, 1e-4F) / kMostE4M3); break;
  }
  codes.factor = 1 / scale;
  // Up to 232, half-way to the next code, rounds to 224.
  const bool halves = rule == QuantizeRule::kUe8m0 && scale > kLeastUe8m0 &&
                      largest * codes.factor <= 232;  // not of infinities
  if (!halves) return scale;
  codes.most_added = 8;
  return scale / 2;
}

}  // namespace

void quantize_fp8(LargestBF16 largest_bf16, CodesOfBF16 codes_of_bf16, QuantizeRule rule,
                  const void* weights, std::uint64_t rows, std::uint64_t columns, void* codes,
                  void* scales) {
  constexpr std::uint64_t kStrip = kStripBlocks * kQuantizeBlock;
  const auto* const from = static_cast<const std::byte*>(weights);
  auto* const to = static_cast<std::byte*>(codes);
  auto* scale_at = static_cast<std::byte*>(scales);
  Strip strip;
  for (std::uint64_t i = 0; i < rows; i += kQuantizeBlock) {
    for (std::uint64_t j = 0; j < columns; j += kStrip) {
      const auto high = static_cast<std::uint32_t>(std::min(kQuantizeBlock, rows - i));
      const auto wide = static_cast<std::uint32_t>(std::min(kStrip, columns - j));
      const std::byte* const first = from + (i * columns + j) * sizeof(std::uint16_t);
      std::uint16_t largest[kStripBlocks];
      CodeRule code_rules[kStripBlocks];
      largest_bf16(first, high, wide, columns, strip, largest);
      for (std::uint64_t block = 0; block < quantize_blocks(wide); ++block) {
        const float scale =
            rule_of(rule, std::bit_cast<float>(f32_of_bf16(largest[block])), code_rules[block]);
        std::memcpy(scale_at, &scale, sizeof(scale));
        scale_at += sizeof(scale);
      }
      codes_of_bf16(code_rules, strip, high, wide, columns, to + i * columns + j);
    }
  }
}

}  // namespace driftless::cpu
