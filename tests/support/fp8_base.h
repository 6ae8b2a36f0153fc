// SPDX-License-Identifier: Apache-2.0
// Weights in bfloat16, and the base with FP8 blocks or INT4 groups that the reference makes of
// them.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <iterator>
#include <random>
#include <string>

#include "core/file_system.h"
#include "kernels/quantize.h"
#include "kernels/value_cast.h"
#include "plugin/checkpoint/quantization.h"
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

inline bool has_int4_groups(const TestTensor& tensor, unsigned group) {
  return has_fp8_blocks(tensor) && !tensor.bytes.empty() && tensor.shape[1] % group == 0;
}

// Matrices that cannot be divided into groups stay as they are.
inline Weights in_int4(const Weights& weights, unsigned group) {
  Weights made;
  for (const auto& [name, tensor] : weights) {
    if (!has_int4_groups(tensor, group)) {
      made[name] = tensor;
      continue;
    }
    const std::uint64_t rows = tensor.shape[0], columns = tensor.shape[1];
    TestTensor packed{DType::kI32, {rows, columns / kInt4InWord}, {}};
    packed.bytes.resize(rows * columns / 2);
    TestTensor scales{DType::kBF16, {rows, columns / group}, {}};
    scales.bytes.resize(rows * columns / group * 2);
    EXPECT_TRUE(quantize_int4(all_quantizers().front(), group, tensor.bytes.data(), rows, columns,
                              1, packed.bytes.data(), scales.bytes.data())
                    .ok());
    const TensorSpec spec = TensorSpec::make(name, DType::kBF16, tensor.shape).value();
    made[name + std::string(kPackedSuffix)] = packed;
    made[name + std::string(kGroupScaleSuffix)] = scales;
    made[name + std::string(kShapeSuffix)] = {
        DType::kI32, {2}, int4_shape_bytes(spec, DType::kI32)};
  }
  return made;
}

// How a base is quantized.
struct BaseKind {
  QuantizeRule rule = QuantizeRule::kLinear;
  unsigned int4_group = 0;  // 0: FP8 blocks, by the rule

  [[nodiscard]] Weights made_of(const Weights& weights) const {
    return int4_group > 0 ? in_int4(weights, int4_group) : quantized(weights, rule);
  }
  [[nodiscard]] std::string codes(const std::string& name) const {
    return int4_group > 0 ? name + std::string(kPackedSuffix) : name;
  }
  // Whether weight number `at` has the same code.
  [[nodiscard]] bool same_code(const TestTensor& one, const TestTensor& other,
                               std::size_t at) const {
    if (int4_group == 0) return one.bytes[at] == other.bytes[at];
    const std::byte mask{static_cast<unsigned char>(at % 2 == 0 ? 0x0f : 0xf0)};
    return ((one.bytes[at / 2] ^ other.bytes[at / 2]) & mask) == std::byte{0};
  }
};

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
inline Weights changed_below_codes(Weights weights, const std::string& name, BaseKind kind) {
  TestTensor& tensor = weights.at(name);
  const Weights before{{name, tensor}};
  TestTensor nudged = tensor;
  for (std::size_t i = 0; i < nudged.bytes.size() / 2; ++i) {
    std::uint16_t& weight = bf16_weight(nudged, i);
    // No block's or group's largest.
    if ((weight & 0x7fffU) < (kind.int4_group > 0 ? 0x3a00U : 0x3c00U)) weight ^= 1;
  }
  const TestTensor old_codes = kind.made_of(before).at(kind.codes(name));
  const TestTensor codes = kind.made_of({{name, nudged}}).at(kind.codes(name));
  for (std::size_t i = 0; i < nudged.bytes.size() / 2; ++i) {
    if (kind.same_code(codes, old_codes, i)) bf16_weight(tensor, i) = bf16_weight(nudged, i);
  }
  EXPECT_NE(tensor.bytes, before.at(name).bytes);
  const Weights old_made = kind.made_of(before);
  for (const auto& [part, made] : kind.made_of({{name, tensor}})) {
    EXPECT_EQ(made.bytes, old_made.at(part).bytes) << part;
  }
  return weights;
}

// With the config.json of a base of this kind.
inline void write_base(const std::string& directory, const Weights& base, BaseKind kind) {
  write_checkpoint(directory, base);
  const std::string scale_fmt =
      kind.rule == QuantizeRule::kUe8m0 ? R"(, "scale_fmt": "ue8m0")" : "";
  const std::string fp8 = concat(R"("fp8", "fmt": "e4m3", "activation_scheme": "dynamic",)",
                                 R"( "weight_block_size": [128, 128])", scale_fmt);
  const std::string int4 =
      concat(R"("compressed-tensors", "config_groups": {"group_0": {"weights": {"num_bits": 4,)",
             R"( "type": "int", "strategy": "group", "group_size": )", kind.int4_group, "}}}");
  EXPECT_TRUE(write_text(posix_file_system(), directory + "/config.json",
                         concat(R"({"quantization_config": {"quant_method": )",
                                kind.int4_group > 0 ? int4 : fp8, "}}"))
                  .ok());
}

}  // namespace driftless::testing
