// SPDX-License-Identifier: Apache-2.0
// Groups whose size is a compile-time constant, without branches, so that the compiler vectorizes
// the loops.
#include <bit>
#include <cstring>

#include "kernels/cpu/baseline.h"
#include "kernels/fp8_code.h"
#include "kernels/value_cast.h"

namespace driftless::cpu {
namespace {

// Floats near this number are 1 apart, so adding it rounds, and leaves the code in the lowest bits.
// A code is stored plus 8, which inverts the highest of its four bits. For a NaN these bits are 0,
// like those of code 0.
constexpr float kRounds = 12582912;  // 1.5 * 2^23
constexpr std::uint32_t kCodeBits = 15, kStoredPlus = 8;

template <unsigned kGroup>
void quantize_group(const std::byte* weights, std::byte* packed, std::byte* scale_at) {
  std::uint16_t bits[kGroup];
  std::memcpy(bits, weights, sizeof(bits));
  std::uint16_t largest = 0;
  for (const std::uint16_t each : bits) {
    const std::uint16_t size = size_of_bf16(each);
    largest = size > largest ? size : largest;
  }
  const float least = 1e-5F;
  const float wanted = std::bit_cast<float>(f32_of_bf16(largest)) * (1.0F / 7.0F);
  const float scale = wanted < least ? least : wanted;
  std::uint8_t codes[kGroup];
  for (unsigned i = 0; i < kGroup; ++i) {
    const float rounded = std::bit_cast<float>(std::uint32_t{bits[i]} << 16) / scale + kRounds;
    codes[i] = static_cast<std::uint8_t>((std::bit_cast<std::uint32_t>(rounded) & kCodeBits) ^
                                         kStoredPlus);
  }
  for (unsigned i = 0; i < kGroup; i += 2) {
    packed[i / 2] = static_cast<std::byte>(codes[i] | codes[i + 1] << 4);
  }
  const std::uint16_t stored = bf16_of_f32(std::bit_cast<std::uint32_t>(scale));
  std::memcpy(scale_at, &stored, sizeof(stored));
}

template <unsigned kGroup>
void quantize_rows(std::uint64_t rows, std::uint64_t columns, std::uint64_t stride,
                   const std::byte* weights, std::byte* packed, std::byte* scales) {
  for (std::uint64_t i = 0; i < rows; ++i) {
    for (std::uint64_t j = 0; j < columns; j += kGroup) {
      quantize_group<kGroup>(weights + (i * stride + j) * sizeof(std::uint16_t), packed, scales);
      packed += kGroup / 2;
      scales += sizeof(std::uint16_t);
    }
  }
}

}  // namespace

void quantize_groups(unsigned group, std::uint64_t rows, std::uint64_t columns,
                     std::uint64_t stride, const void* weights, void* packed, void* scales) {
  const auto* const from = static_cast<const std::byte*>(weights);
  auto* const to = static_cast<std::byte*>(packed);
  auto* const scales_at = static_cast<std::byte*>(scales);
  if (group == 32) return quantize_rows<32>(rows, columns, stride, from, to, scales_at);
  quantize_rows<128>(rows, columns, stride, from, to, scales_at);
}

}  // namespace driftless::cpu
