// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "kernels/reference/operations.h"

namespace driftless::reference {

std::uint64_t gather_strided(const StridedMap& map, const void* target, unsigned unit_bytes,
                             std::uint64_t origin, const std::uint32_t* offsets,
                             std::uint64_t count, void* values) {
  const auto* from = static_cast<const std::byte*>(target);
  auto* to = static_cast<std::byte*>(values);
  std::uint64_t read = 0;
  for (std::uint64_t k = 0; k < count; ++k) {
    const std::uint64_t at = map.target_of(origin + offsets[k]);
    if (at == StridedMap::kOutside) continue;
    std::memcpy(to + k * unit_bytes, from + at * unit_bytes, unit_bytes);
    ++read;
  }
  return read;
}

}  // namespace driftless::reference
