// SPDX-License-Identifier: Apache-2.0
// The shape of a Qwen3 model with about a given number of parameters, its tensors and its
// config.json.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/layout.h"
#include "core/status.h"

namespace driftless {

struct Qwen3Shape {
  std::uint64_t hidden = 0;
  std::uint64_t layers = 0;
  std::uint64_t ffn = 0;
  std::uint64_t vocabulary = 0;
  std::uint64_t heads = 0;
  std::uint64_t kv_heads = 0;
  std::uint64_t head_dim = 0;

  [[nodiscard]] std::uint64_t params() const;
};

inline constexpr std::uint64_t kMinQwen3Params = 60'000;
inline constexpr std::uint64_t kMaxQwen3Params = 10'000'000'000'000;

// Accurate to 3 % of `params` from 100 thousand on. kInvalidArgument outside the bounds above. The
// row length of every matrix is a multiple of 16.
[[nodiscard]] Result<Qwen3Shape> qwen3_shape(std::uint64_t params);

// All tensors are bf16, in the order of the model; embeddings are not tied.
[[nodiscard]] Result<std::vector<TensorSpec>> qwen3_tensors(const Qwen3Shape& shape);

// The config.json that transformers expects beside the weights.
[[nodiscard]] std::string qwen3_config_json(const Qwen3Shape& shape);

}  // namespace driftless
