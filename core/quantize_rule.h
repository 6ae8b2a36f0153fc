// SPDX-License-Identifier: Apache-2.0
// The rules by which bfloat16 weights become FP8 codes (E4M3) with a float32 scale for each block
// of 128 rows and 128 columns, fewer at a matrix' ends. docs/operate/quantized.md has them for
// users.
//
// `largest` is the largest magnitude in the block that is not NaN. Every operation is one of
// float32, rounded to nearest, ties to even; nothing is contracted or reordered, so that all
// implementations give the same bits. No intermediate value that decides a bit is denormal: a
// thread that flushes denormals gives these bits, too.
//
//   kLinear     scale = max(largest, 1e-10) / 448    code of weight * (1 / scale)
//   kLinearDiv  scale = max(largest, e) / 448        code of weight / scale
//   kUe8m0      scale = the smallest power of two of at least max(largest, 1e-4) / 448
//               code of weight * (1 / scale)
//
// e is 1e-12 as bfloat16 has it. kUe8m0 then halves the scale and doubles the codes if none is
// above 224 and the scale is above 2^-22, the smallest that the rule gives: so what the codes stand
// for gets the same codes and scales again.
//
// The code of x: x is clamped to [-448, 448] and rounded to the nearest E4M3, ties to even; zeros
// keep their sign. A NaN, and an infinite weight, has the code 0x7f; an infinite weight makes the
// scale infinite and the codes of finite weights beside it zeros.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "core/status.h"

namespace driftless {

enum class QuantizeRule : unsigned char { kLinear, kLinearDiv, kUe8m0 };

inline constexpr std::uint64_t kQuantizeBlock = 128;  // rows, and columns
[[nodiscard]] constexpr std::uint64_t quantize_blocks(std::uint64_t extent) {
  return extent / kQuantizeBlock + (extent % kQuantizeBlock != 0 ? 1 : 0);
}

// The most bytes of a rule's name, of later releases, too.
inline constexpr std::size_t kMaxRuleName = 64;
// "linear", "linear_div", "ue8m0"
[[nodiscard]] std::string_view to_string(QuantizeRule rule);
[[nodiscard]] Result<QuantizeRule> parse_quantize_rule(std::string_view name);

// Whether a publisher quantizes.
enum class QuantizeScheme : unsigned char {
  kAuto,      // as the base is
  kNone,      // the weights are those of the base as they come
  kFp8Block,  // the base must have FP8 blocks
};

struct QuantizeSettings {
  QuantizeScheme scheme = QuantizeScheme::kAuto;
  QuantizeRule rule = QuantizeRule::kLinear;
};

}  // namespace driftless
