// SPDX-License-Identifier: Apache-2.0
// How bfloat16 weights become the tensors of a base checkpoint. This follows from the base's
// config.json (quantization_config) and its tensors: a tensor is quantized if and only if its
// scales are there (docs/operate/quantized.md).
#pragma once

#include "core/quantize_rule.h"
#include "formats/checkpoint.h"

namespace driftless {

// The name of a tensor's scales is the tensor's name with this suffix.
inline constexpr std::string_view kScaleSuffix = "_scale_inv";
// INT4, as compressed-tensors stores it. Three tensors replace a matrix: its codes, their scales,
// and the matrix's numbers of rows and columns.
inline constexpr std::string_view kPackedSuffix = "_packed", kGroupScaleSuffix = "_scale",
                                  kShapeSuffix = "_shape";
inline constexpr std::string_view kModelConfigName = "config.json";

struct QuantizedAs {
  bool quantized = false;                     // false: the weights are already in the base's form
  unsigned int4_group = 0;                    // weights per group; 0: FP8 blocks
  QuantizeRule rule = QuantizeRule::kLinear;  // for FP8 blocks

  [[nodiscard]] std::string_view rule_name() const {
    return int4_group > 0 ? kInt4Rule : to_string(rule);
  }
};

// `weights`: the weights that this rank publishes. Not quantized if the base has the same tensors,
// or is not quantized. kUnsupported, naming the scheme and an alternative, if the base's scheme is
// neither FP8 blocks of 128x128 with float32 scales nor INT4 in symmetric groups of 32 or 128.
// kWrongLayout, by name, if its scales and tensors do not fit together. kInvalidArgument if the
// settings do not fit the base.
[[nodiscard]] Result<QuantizedAs> needs_quantization(FileSystem& fs, const Checkpoint& base,
                                                     const WeightLayout& weights,
                                                     const QuantizeSettings& settings);

// The spec of a matrix's scales.
[[nodiscard]] Result<TensorSpec> scales_of(const TensorSpec& matrix);
// The tensors that replace a bfloat16 matrix in INT4. `group` divides its columns.
struct Int4Tensors {
  TensorSpec packed, scales, shape;
};
[[nodiscard]] Result<Int4Tensors> int4_tensors_of(const TensorSpec& matrix, unsigned group);
// The content of the shape tensor, as int32 or int64.
[[nodiscard]] std::vector<std::byte> int4_shape_bytes(const TensorSpec& matrix, DType dtype);

}  // namespace driftless
