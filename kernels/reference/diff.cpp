// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "kernels/reference/operations.h"

namespace driftless::reference {

std::uint32_t diff(const void* old_units, const void* new_units, std::uint32_t count,
                   unsigned unit_bytes, std::uint32_t* offsets, void* values, void* old_values) {
  const auto* before = static_cast<const std::byte*>(old_units);
  const auto* after = static_cast<const std::byte*>(new_units);
  auto* out = static_cast<std::byte*>(values);
  auto* old_out = static_cast<std::byte*>(old_values);
  std::uint32_t found = 0;
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::size_t at = std::size_t{i} * unit_bytes;
    if (std::memcmp(before + at, after + at, unit_bytes) == 0) continue;
    offsets[found] = i;
    const std::size_t to = std::size_t{found} * unit_bytes;
    std::memcpy(out + to, after + at, unit_bytes);
    if (old_out != nullptr) std::memcpy(old_out + to, before + at, unit_bytes);
    ++found;
  }
  return found;
}

}  // namespace driftless::reference
