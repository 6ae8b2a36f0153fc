// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "kernels/reference/operations.h"

namespace driftless::reference {

void gather(const void* units, unsigned unit_bytes, const std::uint32_t* offsets,
            std::uint64_t count, void* values) {
  const auto* from = static_cast<const std::byte*>(units);
  auto* to = static_cast<std::byte*>(values);
  for (std::uint64_t k = 0; k < count; ++k) {
    std::memcpy(to + k * unit_bytes, from + std::size_t{offsets[k]} * unit_bytes, unit_bytes);
  }
}

}  // namespace driftless::reference
