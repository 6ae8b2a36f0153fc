// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "kernels/reference/operations.h"
#include "kernels/value_cast.h"

namespace driftless::reference {
namespace {

constexpr float kMostE4M3 = 448;
constexpr std::uint8_t kNanE4M3 = 0x7f;
constexpr float kLeastUe8m0 = 0x1p-22F;

struct Matrix {
  const std::byte* weights;
  std::uint64_t stride;

  [[nodiscard]] float at(std::uint64_t row, std::uint64_t column) const {
    std::uint16_t bits = 0;
    std::memcpy(&bits, weights + (row * stride + column) * sizeof(bits), sizeof(bits));
    return std::bit_cast<float>(f32_of_bf16(bits));
  }
};

struct Range {
  std::uint64_t begin, end;
};

// Exponents are -6 to 8; smaller values have the same spacing as with exponent -6.
std::uint8_t e4m3_of(float value) {
  if (std::isnan(value)) return kNanE4M3;
  const float size = std::min(std::fabs(value), kMostE4M3);
  const int exponent = size == 0 ? -6 : std::max(std::ilogb(size), -6);
  const double steps = std::nearbyint(std::ldexp(double{size}, 3 - exponent));
  const int code = 8 * (exponent + 6) + static_cast<int>(steps);
  return static_cast<std::uint8_t>(code | (std::signbit(value) ? 0x80 : 0));
}

std::uint8_t doubled(std::uint8_t code) {
  const unsigned size = code & 0x7fU;
  if (size == kNanE4M3) return code;
  return static_cast<std::uint8_t>((code & 0x80U) | (size < 8 ? 2 * size : size + 8));
}

float scale_of(QuantizeRule rule, float largest) {
  switch (rule) {
    case QuantizeRule::kLinear: return std::max(largest, 1e-10F) / kMostE4M3;
    case QuantizeRule::kLinearDiv: {
      const float least = std::bit_cast<float>(f32_of_bf16(0x2b8d));  // 1e-12
      return std::max(largest, least) / kMostE4M3;
    }
    case QuantizeRule::kUe8m0: break;
  }
  const float least = std::max(largest, 1e-4F) / kMostE4M3;
  if (std::isinf(least)) return least;
  const float power = std::ldexp(1.0F, std::ilogb(least));
  return power < least ? 2 * power : power;
}

// The intersection of a part of a matrix with one block.
struct Meeting {
  Range rows, columns;  // in the part
  std::uint16_t* largest;
};

void quantize_block(QuantizeRule rule, const Matrix& matrix, const Meeting& block,
                    std::byte* codes) {
  const auto& [rows, columns, known] = block;
  float largest = std::bit_cast<float>(f32_of_bf16(*known));
  for (std::uint64_t i = rows.begin; i < rows.end; ++i) {
    for (std::uint64_t j = columns.begin; j < columns.end; ++j) {
      const float size = std::fabs(matrix.at(i, j));
      if (!std::isnan(size)) largest = std::max(largest, size);
    }
  }
  *known = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(largest) >> 16);
  if (codes == nullptr) return;
  const float scale = scale_of(rule, largest);
  const float inverse = 1 / scale;
  const auto code_of = [&](float weight) {
    return e4m3_of(rule == QuantizeRule::kLinearDiv ? weight / scale : weight * inverse);
  };
  constexpr std::uint8_t kHalfOfMost = 0x76;  // 224
  const bool halves =
      rule == QuantizeRule::kUe8m0 && scale > kLeastUe8m0 && code_of(largest) <= kHalfOfMost;
  for (std::uint64_t i = rows.begin; i < rows.end; ++i) {
    for (std::uint64_t j = columns.begin; j < columns.end; ++j) {
      const std::uint8_t code = code_of(matrix.at(i, j));
      codes[i * matrix.stride + j] = std::byte{halves ? doubled(code) : code};
    }
  }
}

}  // namespace

void quantize_part(QuantizeRule rule, const MatrixPart& part, const void* weights,
                   std::uint16_t* largest, void* codes) {
  const Matrix matrix{static_cast<const std::byte*>(weights), part.stride};
  // The part's rows or columns in block number `block`.
  const auto in_block = [](std::uint64_t block, std::uint64_t first, std::uint64_t count) {
    const std::uint64_t begin = std::max(block * kQuantizeBlock, first);
    return Range{begin - first, std::min((block + 1) * kQuantizeBlock, first + count) - first};
  };
  for (std::uint64_t i = 0; i < part.blocks_high(); ++i) {
    for (std::uint64_t j = 0; j < part.blocks_wide(); ++j) {
      quantize_block(rule, matrix,
                     {in_block(i, part.row, part.rows), in_block(j, part.column, part.columns),
                      largest + i * part.blocks_wide() + j},
                     static_cast<std::byte*>(codes));
    }
  }
}

}  // namespace driftless::reference
