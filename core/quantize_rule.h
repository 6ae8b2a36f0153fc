// SPDX-License-Identifier: Apache-2.0
// The rules that quantize bfloat16 weights. Three rules make FP8 codes (E4M3) with a float32 scale
// for each block of 128 rows and 128 columns; blocks at a matrix' ends are smaller. One rule makes
// INT4 codes with a scale for each group of a row. docs/operate/quantized.md is the page for users.
//
// `largest` is the largest magnitude in the block that is not NaN. All arithmetic is float32,
// rounded to nearest, ties to even. Operations are neither contracted nor reordered, so that all
// implementations give the same bits. No intermediate value that decides a bit is denormal, so a
// thread that flushes denormals gives these bits, too.
//
//   kLinear     scale = max(largest, 1e-10) / 448    code of weight * (1 / scale)
//   kLinearDiv  scale = max(largest, e) / 448        code of weight / scale
//   kUe8m0      scale = the smallest power of two of at least max(largest, 1e-4) / 448
//               code of weight * (1 / scale)
//
// e is 1e-12 rounded to bfloat16. kUe8m0 has one more step: if no code is above 224 and the scale
// is above 2^-22 (the smallest that the rule gives), it halves the scale and doubles the codes. So
// weights that were dequantized get the same codes and scales again.
//
// The code of x: x is clamped to [-448, 448] and rounded to the nearest E4M3, ties to even. Zeros
// keep their sign. NaN and infinite weights have the code 0x7f. An infinite weight makes its
// block's scale infinite, and the codes of the block's finite weights zero.
//
//   int4_group  scale = max(largest * (1 / 7), 1e-5)    code = weight / scale, to the nearest
//
// A group has 32 or 128 weights of a row. Codes go from -7 to 7. They are stored plus 8, eight in
// an int32, the first in the lowest bits. The scale is rounded to bfloat16 after the codes were
// computed. NaN does not count for the scale, and its code is 0. If a weight of the group is
// infinite, all codes of the group are 0.
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

inline constexpr std::string_view kInt4Rule = "int4_group";
inline constexpr unsigned kInt4InWord = 8;  // codes of an int32
[[nodiscard]] constexpr bool is_int4_group(std::uint64_t weights) {
  return weights == 32 || weights == 128;
}

// The most bytes that the name of a rule may have, in this release and in later ones.
inline constexpr std::size_t kMaxRuleName = 64;
// "linear", "linear_div", "ue8m0"
[[nodiscard]] std::string_view to_string(QuantizeRule rule);
[[nodiscard]] Result<QuantizeRule> parse_quantize_rule(std::string_view name);

// Whether a publisher quantizes.
enum class QuantizeScheme : unsigned char {
  kAuto,       // if the base is quantized
  kNone,       // never: the source's weights are published as they are
  kFp8Block,   // the base must have FP8 blocks
  kInt4Group,  // the base must have groups in INT4
};

struct QuantizeSettings {
  QuantizeScheme scheme = QuantizeScheme::kAuto;
  QuantizeRule rule = QuantizeRule::kLinear;
};

}  // namespace driftless
