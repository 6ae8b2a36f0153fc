// SPDX-License-Identifier: Apache-2.0
// Weights in bfloat16, and the base with FP8 blocks that the reference makes of them.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <iterator>
#include <random>
#include <string>

#include "core/file_system.h"
#include "kernels/quantize.h"
#include "kernels/value_cast.h"
#include "support/weights.h"

namespace driftless::testing {

inline std::uint16_t& bf16_weight(TestTensor& tensor, std::size_t index) {
  return reinterpret_cast<std::uint16_t*>(tensor.bytes.data())[index];
}

inline bool has_fp8_blocks(const TestTensor& tensor) {
  return tensor.dtype == DType::kBF16 && tensor.shape.size() == 2;
}

// The sizes leave incomplete blocks of 128x128.
inline Weights bf16_matrices(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> near(0, 0.02F);
  Weights weights;
  weights["m.a.weight"] = random_tensor(DType::kBF16, {260, 130}, random);
  weights["m.b.weight"] = random_tensor(DType::kBF16, {129, 400}, random);
  weights["m.c.weight"] = random_tensor(DType::kBF16, {64, 64}, random);
  weights["m.d.weight"] = random_tensor(DType::kBF16, {256, 256}, random);
  weights["m.empty.weight"] = random_tensor(DType::kBF16, {0, 5}, random);
  for (auto& [name, tensor] : weights) {
    for (std::size_t i = 0; i < tensor.bytes.size() / 2; ++i) {
      bf16_weight(tensor, i) = bf16_of_f32(std::bit_cast<std::uint32_t>(near(random)));
    }
  }
  weights["m.norm.weight"] = random_tensor(DType::kBF16, {96}, random);
  weights["m.bias"] = random_tensor(DType::kF32, {5}, random);
  return weights;
}

inline Weights quantized(const Weights& weights, QuantizeRule rule) {
  Weights made;
  for (const auto& [name, tensor] : weights) {
    if (!has_fp8_blocks(tensor)) {
      made[name] = tensor;
      continue;
    }
    const std::uint64_t rows = tensor.shape[0], columns = tensor.shape[1];
    TestTensor codes{DType::kF8E4M3, tensor.shape, std::vector<std::byte>(rows * columns)};
    TestTensor scales{DType::kF32, {quantize_blocks(rows), quantize_blocks(columns)}, {}};
    scales.bytes.resize(scales.shape[0] * scales.shape[1] * 4);
    EXPECT_TRUE(quantize_fp8(all_quantizers().front(), rule, tensor.bytes.data(), rows, columns, 1,
                             codes.bytes.data(), scales.bytes.data())
                    .ok());
    made[name] = codes;
    made[name + "_scale_inv"] = scales;
  }
  return made;
}

// Changes weights as training does. In some blocks the largest magnitude grows or falls, or a
// weight becomes an infinity, a NaN, a denormal or -0.
inline Weights stepped(Weights weights, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  for (auto& [name, tensor] : weights) {
    if (tensor.bytes.empty()) continue;
    if (!has_fp8_blocks(tensor)) {
      tensor.bytes[random() % tensor.bytes.size()] ^= std::byte{1};
      continue;
    }
    const std::size_t count = tensor.bytes.size() / 2;
    for (std::size_t i = 0; i < count; ++i) {
      if (random() % 50 != 0) continue;
      bf16_weight(tensor, i) ^= static_cast<std::uint16_t>(1 + random() % 3);
    }
    bf16_weight(tensor, random() % count) = bf16_of_f32(std::bit_cast<std::uint32_t>(0.2F));
    const std::uint16_t odd[] = {0x7f80, 0x7fc0, 0x0001, 0x8000, 0x3f80};
    if (seed % 3 == 0) bf16_weight(tensor, random() % count) = odd[random() % std::size(odd)];
    if (seed % 3 != 1) continue;
    for (std::size_t i = 0; i < count; ++i) {  // they fall
      std::uint16_t& weight = bf16_weight(tensor, i);
      if ((weight & 0x7fffU) > 0x3d80U && random() % 3 == 0) weight = 0x3c00;
    }
  }
  return weights;
}

// Changes many weights of a matrix of whole blocks so little that codes and scales stay.
inline Weights changed_below_codes(Weights weights, const std::string& name, QuantizeRule rule) {
  TestTensor& tensor = weights.at(name);
  const Weights before{{name, tensor}};
  TestTensor nudged = tensor;
  for (std::size_t i = 0; i < nudged.bytes.size() / 2; ++i) {
    std::uint16_t& weight = bf16_weight(nudged, i);
    if ((weight & 0x7fffU) < 0x3c00U) weight ^= 1;  // no block's largest
  }
  const TestTensor old_codes = quantized(before, rule).at(name);
  const TestTensor codes = quantized({{name, nudged}}, rule).at(name);
  for (std::size_t i = 0; i < codes.bytes.size(); ++i) {
    if (codes.bytes[i] == old_codes.bytes[i]) bf16_weight(tensor, i) = bf16_weight(nudged, i);
  }
  EXPECT_NE(tensor.bytes, before.at(name).bytes);
  const std::string scales = name + "_scale_inv";
  const Weights made = quantized({{name, tensor}}, rule), old_made = quantized(before, rule);
  EXPECT_EQ(made.at(name).bytes, old_made.at(name).bytes);
  EXPECT_EQ(made.at(scales).bytes, old_made.at(scales).bytes);
  return weights;
}

// With the config.json of a base by this rule.
inline void write_fp8_base(const std::string& directory, const Weights& base, QuantizeRule rule) {
  write_checkpoint(directory, base);
  const std::string scale_fmt = rule == QuantizeRule::kUe8m0 ? R"(, "scale_fmt": "ue8m0")" : "";
  EXPECT_TRUE(write_text(posix_file_system(), directory + "/config.json",
                         concat(R"({"quantization_config": {"quant_method": "fp8", "fmt": "e4m3",)",
                                R"( "activation_scheme": "dynamic",)",
                                R"( "weight_block_size": [128, 128])", scale_fmt, "}}"))
                  .ok());
}

}  // namespace driftless::testing
