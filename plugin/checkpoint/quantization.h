// SPDX-License-Identifier: Apache-2.0
// How bfloat16 weights become the tensors of a base checkpoint: asked of the base's config.json
// (quantization_config) and of its tensors. One is quantized if and only if its scales are there
// (docs/operate/quantized.md).
#pragma once

#include "core/quantize_rule.h"
#include "formats/checkpoint.h"

namespace driftless {

// Behind the name of the quantized tensor: that of its scales.
inline constexpr std::string_view kScaleSuffix = "_scale_inv";
// INT4, as compressed-tensors stores it: in the place of the tensor its codes, their scales, and
// how many rows and columns it has.
inline constexpr std::string_view kPackedSuffix = "_packed", kGroupScaleSuffix = "_scale",
                                  kShapeSuffix = "_shape";
inline constexpr std::string_view kModelConfigName = "config.json";

struct QuantizedAs {
  bool quantized = false;                     // else the weights are the base's as they are
  unsigned int4_group = 0;                    // 0: FP8 blocks
  QuantizeRule rule = QuantizeRule::kLinear;  // of FP8 blocks

  [[nodiscard]] std::string_view rule_name() const {
    return int4_group > 0 ? kInt4Rule : to_string(rule);
  }
};

// `weights`: what this rank publishes. Not quantized if the base has these tensors as they are, or
// is not quantized. kUnsupported, naming the scheme and what to use instead, if the base is
// quantized by another one than FP8 blocks of 128x128 with float32 scales or INT4 in symmetric
// groups of 32 or 128; kWrongLayout, by name, if its scales and tensors do not fit;
// kInvalidArgument if the settings do not fit the base.
[[nodiscard]] Result<QuantizedAs> needs_quantization(FileSystem& fs, const Checkpoint& base,
                                                     const WeightLayout& weights,
                                                     const QuantizeSettings& settings);

// The scales of a matrix.
[[nodiscard]] Result<TensorSpec> scales_of(const TensorSpec& matrix);
// The tensors that a bfloat16 matrix becomes in INT4. `group` divides its columns.
struct Int4Tensors {
  TensorSpec packed, scales, shape;
};
[[nodiscard]] Result<Int4Tensors> int4_tensors_of(const TensorSpec& matrix, unsigned group);
// What the last one holds, as int32 or int64.
[[nodiscard]] std::vector<std::byte> int4_shape_bytes(const TensorSpec& matrix, DType dtype);

}  // namespace driftless
