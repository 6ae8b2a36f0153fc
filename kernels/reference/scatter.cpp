// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "kernels/reference/operations.h"

namespace driftless::reference {

void scatter(void* units, unsigned unit_bytes, const std::uint32_t* offsets, std::uint64_t count,
             const void* values) {
  const auto* from = static_cast<const std::byte*>(values);
  auto* to = static_cast<std::byte*>(units);
  for (std::uint64_t k = 0; k < count; ++k) {
    std::memcpy(to + std::size_t{offsets[k]} * unit_bytes, from + k * unit_bytes, unit_bytes);
  }
}

}  // namespace driftless::reference
