// SPDX-License-Identifier: Apache-2.0
// How many weights a Hugging Face model has, by the shapes that its config.json states.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "core/status.h"

namespace driftless {

// Layers for multi-token prediction are not counted: a trainer does not publish them by default.
struct ModelShape {
  std::string family;          // "qwen3_moe"
  std::uint64_t weights = 0;   // all of them
  std::uint64_t experts = 0;   // of these, in routed experts: what expert parallelism cuts
  std::uint64_t matrices = 0;  // of these, what a base in FP8 blocks holds as codes
  std::uint64_t layers = 0;
};

// `text` is a config.json, `what` its name in messages. kUnsupported, naming --params, for a
// model_type that is not known; kCorrupt if it is no such JSON, or a size is missing or absurd.
[[nodiscard]] Result<ModelShape> model_shape(std::string_view text, std::string_view what);
// A dense Qwen3 of about so many weights, counted as exactly so many.
[[nodiscard]] Result<ModelShape> model_shape(std::uint64_t weights);

}  // namespace driftless
