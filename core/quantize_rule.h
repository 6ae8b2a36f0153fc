// SPDX-License-Identifier: Apache-2.0
// The rules by which bfloat16 weights become FP8 codes (E4M3) with a float32 scale for each block
// of 128 rows and 128 columns, fewer at a matrix' ends; and the one rule by which they become INT4
// codes with a scale for each group of a row. docs/operate/quantized.md has them for users.
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
//
//   int4_group  scale = max(largest * (1 / 7), 1e-5)    code = weight / scale, to the nearest
//
// of 32 or 128 weights of a row. Codes go from -7 to 7, are stored plus 8, eight to an int32 from
// the lowest bits on; the scale is stored as bfloat16, rounded after the codes were found. A NaN
// does not count for the scale; its code is 0, and so are all beside an infinite weight.
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

// The most bytes of a rule's name, of later releases, too.
inline constexpr std::size_t kMaxRuleName = 64;
// "linear", "linear_div", "ue8m0"
[[nodiscard]] std::string_view to_string(QuantizeRule rule);
[[nodiscard]] Result<QuantizeRule> parse_quantize_rule(std::string_view name);

// Whether a publisher quantizes.
enum class QuantizeScheme : unsigned char {
  kAuto,       // as the base is
  kNone,       // the weights are those of the base as they come
  kFp8Block,   // the base must have FP8 blocks
  kInt4Group,  // the base must have groups in INT4
};

struct QuantizeSettings {
  QuantizeScheme scheme = QuantizeScheme::kAuto;
  QuantizeRule rule = QuantizeRule::kLinear;
};

}  // namespace driftless
