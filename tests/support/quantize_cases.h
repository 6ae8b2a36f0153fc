// SPDX-License-Identifier: Apache-2.0
// What tests of quantization share.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <random>
#include <vector>

#include "kernels/quantize.h"
#include "kernels/value_cast.h"
#include "support/kernels_data.h"

namespace driftless::testing {

inline constexpr QuantizeRule kRules[] = {QuantizeRule::kLinear, QuantizeRule::kLinearDiv,
                                          QuantizeRule::kUe8m0};

struct Quantized {
  std::vector<std::uint8_t> codes;
  std::vector<float> scales;
};

inline Quantized quantize(const Quantizer& with, QuantizeRule rule, const std::uint16_t* weights,
                          std::uint64_t rows, std::uint64_t columns) {
  Quantized made;
  made.codes.resize(rows * columns);
  made.scales.resize(quantize_blocks(rows) * quantize_blocks(columns));
  EXPECT_TRUE(quantize_fp8(with, rule, reinterpret_cast<const std::byte*>(weights), rows, columns,
                           1, reinterpret_cast<std::byte*>(made.codes.data()),
                           reinterpret_cast<std::byte*>(made.scales.data()))
                  .ok());
  return made;
}

inline std::uint16_t bf16(float value) { return bf16_of_f32(std::bit_cast<std::uint32_t>(value)); }

inline Quantized reference(QuantizeRule rule, const std::vector<std::uint16_t>& weights,
                           std::uint64_t columns) {
  return quantize(all_quantizers().front(), rule, weights.data(), weights.size() / columns,
                  columns);
}
inline Quantized reference(QuantizeRule rule, const std::vector<std::uint16_t>& weights) {
  return reference(rule, weights, weights.size());
}

// Values like weights; some have arbitrary bits: NaNs, infinities, denormals.
inline std::vector<std::uint16_t> random_weights(Random& random, std::size_t count, bool odd) {
  std::normal_distribution<float> near(0, 0.02F);
  std::vector<std::uint16_t> weights(count);
  for (std::uint16_t& weight : weights) {
    weight = odd && random() % 50 == 0 ? static_cast<std::uint16_t>(random()) : bf16(near(random));
  }
  return weights;
}

}  // namespace driftless::testing
