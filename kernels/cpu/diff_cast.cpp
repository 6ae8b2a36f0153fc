// SPDX-License-Identifier: Apache-2.0
// Converts values in pieces that stay in the L1 cache until they are compared.
#include <algorithm>
#include <cstring>

#include "kernels/cpu/baseline.h"
#include "kernels/reference/operations.h"

namespace driftless::cpu {
namespace {

constexpr std::uint32_t kPieceUnits = 2048;

// Returns whether there is a NaN among them.
bool convert(ValueCast cast, const std::byte* from, std::uint32_t count, std::uint16_t* to) {
  std::uint32_t values[kPieceUnits];  // because `from` may have any address
  std::memcpy(values, from, std::size_t{count} * sizeof(std::uint32_t));
  unsigned nan = 0;
  for (std::uint32_t i = 0; i < count; ++i) nan |= is_nan_f32(values[i]) ? 1U : 0U;
  if (cast == ValueCast::kF32ToBF16) {  // compilers vectorize this case
    for (std::uint32_t i = 0; i < count; ++i) to[i] = bf16_of_f32(values[i]);
  } else {
    for (std::uint32_t i = 0; i < count; ++i) to[i] = f16_of_f32(values[i]);
  }
  return nan != 0;
}

}  // namespace

std::uint32_t diff_cast(DiffUnits diff, const void* old_units, const void* new_values,
                        std::uint32_t count, ValueCast cast, std::uint32_t* offsets, void* values,
                        void* old_values) {
  constexpr unsigned kUnit = sizeof(std::uint16_t);
  const auto* const before = static_cast<const std::byte*>(old_units);
  const auto* const after = static_cast<const std::byte*>(new_values);
  auto* const out = static_cast<std::byte*>(values);
  auto* const old_out = static_cast<std::byte*>(old_values);
  std::uint16_t converted[kPieceUnits];
  std::uint32_t found = 0;
  for (std::uint32_t first = 0; first < count;) {
    const std::uint32_t units = std::min(kPieceUnits, count - first);
    const std::byte* const source = after + std::size_t{first} * sizeof(std::uint32_t);
    const bool nan = convert(cast, source, units, converted);
    const std::size_t to = std::size_t{found} * kUnit;
    const std::byte* const old_units_here = before + std::size_t{first} * kUnit;
    std::byte* const old_to = old_out != nullptr ? old_out + to : nullptr;
    const std::uint32_t here =
        nan ? reference::diff_cast(old_units_here, source, units, cast, offsets + found, out + to,
                                   old_to)
            : diff(old_units_here, converted, units, kUnit, offsets + found, out + to, old_to);
    for (std::uint32_t k = found; k < found + here; ++k) offsets[k] += first;
    found += here;
    first += units;
  }
  return found;
}

}  // namespace driftless::cpu
