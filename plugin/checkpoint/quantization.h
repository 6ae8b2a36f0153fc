// SPDX-License-Identifier: Apache-2.0
// Whether bfloat16 weights must be quantized to become the tensors of a base checkpoint: asked of
// the base's config.json (quantization_config) and of its tensors. One is quantized if and only if
// its scales are there (docs/operate/quantized.md).
#pragma once

#include "core/quantize_rule.h"
#include "formats/checkpoint.h"

namespace driftless {

// Behind the name of the quantized tensor: that of its scales.
inline constexpr std::string_view kScaleSuffix = "_scale_inv";
inline constexpr std::string_view kModelConfigName = "config.json";

// `weights`: what is to be published. False if the base has these tensors as they are, or is not
// quantized. kUnsupported, naming the scheme and what to use instead, if the base is quantized by
// another one than FP8 blocks of 128x128 with float32 scales; kWrongLayout, by name, if its scales
// and tensors do not fit; kInvalidArgument if the settings do not fit the base.
[[nodiscard]] Result<bool> needs_quantization(FileSystem& fs, const Checkpoint& base,
                                              const WeightLayout& weights,
                                              const QuantizeSettings& settings);

// The scales of a matrix.
[[nodiscard]] Result<TensorSpec> scales_of(const TensorSpec& matrix);

}  // namespace driftless
