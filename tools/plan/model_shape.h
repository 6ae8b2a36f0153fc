// SPDX-License-Identifier: Apache-2.0
// Counts the weights of a Hugging Face model by the shapes in its config.json.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "core/status.h"

namespace driftless {

// The counts leave out layers for multi-token prediction: a trainer does not publish them by
// default.
struct ModelShape {
  std::string family;          // "qwen3_moe"
  std::uint64_t weights = 0;   // in total
  std::uint64_t experts = 0;   // of these, in routed experts, which expert parallelism splits
  std::uint64_t matrices = 0;  // of these, weights that a base in FP8 blocks stores as codes
  std::uint64_t layers = 0;
};

// `text` is a config.json, `what` its name in messages. kUnsupported, suggesting --params, for an
// unknown model_type; kCorrupt if it is not JSON of this form, or a size is missing or absurd.
[[nodiscard]] Result<ModelShape> model_shape(std::string_view text, std::string_view what);
// The shape of a dense Qwen3 of about this size; its count is exactly `weights`.
[[nodiscard]] Result<ModelShape> model_shape(std::uint64_t weights);

}  // namespace driftless
