// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "kernels/reference/operations.h"
#include "kernels/value_cast.h"

namespace driftless::reference {
namespace {

constexpr float kMostInt4 = 7, kLeastScale = 1e-5F;
constexpr int kStoredPlus = 8;

float weight_at(const std::byte* weights, std::uint64_t at) {
  std::uint16_t bits = 0;
  std::memcpy(&bits, weights + at * sizeof(bits), sizeof(bits));
  return std::bit_cast<float>(f32_of_bf16(bits));
}

float group_scale_of(const std::byte* weights, std::uint64_t first, unsigned group) {
  float largest = 0;
  for (unsigned i = 0; i < group; ++i) {
    const float size = std::fabs(weight_at(weights, first + i));
    if (!std::isnan(size)) largest = std::max(largest, size);
  }
  return std::max(largest * (1 / kMostInt4), kLeastScale);
}

int int4_code_of(float weight, float scale) {
  const float code = std::nearbyint(weight / scale);
  return std::isnan(code) ? 0 : static_cast<int>(code);
}

}  // namespace

void quantize_groups(unsigned group, std::uint64_t rows, std::uint64_t columns,
                     std::uint64_t stride, const void* weights, void* packed, void* scales) {
  const auto* const from = static_cast<const std::byte*>(weights);
  auto* to = static_cast<std::byte*>(packed);
  auto* scales_at = static_cast<std::byte*>(scales);
  for (std::uint64_t i = 0; i < rows; ++i) {
    for (std::uint64_t j = 0; j < columns; j += group) {
      const std::uint64_t first = i * stride + j;
      const float scale = group_scale_of(from, first, group);
      for (unsigned k = 0; k < group; k += 2) {
        const int low = int4_code_of(weight_at(from, first + k), scale) + kStoredPlus;
        const int high = int4_code_of(weight_at(from, first + k + 1), scale) + kStoredPlus;
        *to++ = static_cast<std::byte>(low | high << 4);
      }
      const std::uint16_t stored = bf16_of_f32(std::bit_cast<std::uint32_t>(scale));
      std::memcpy(scales_at, &stored, sizeof(stored));
      scales_at += sizeof(stored);
    }
  }
}

}  // namespace driftless::reference
