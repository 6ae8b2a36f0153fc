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

void scatter(void* units, unsigned unit_bytes, const std::uint32_t* offsets, std::uint64_t count,
             const void* values) {
  const auto* from = static_cast<const std::byte*>(values);
  auto* to = static_cast<std::byte*>(units);
  for (std::uint64_t k = 0; k < count; ++k) {
    std::memcpy(to + std::size_t{offsets[k]} * unit_bytes, from + k * unit_bytes, unit_bytes);
  }
}

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

std::uint64_t scatter_strided(const StridedMap& map, void* target, unsigned unit_bytes,
                              std::uint64_t origin, const std::uint32_t* offsets,
                              std::uint64_t count, const void* values, ValueCast cast) {
  const auto* from = static_cast<const std::byte*>(values);
  auto* to = static_cast<std::byte*>(target);
  std::uint64_t written = 0;
  for (std::uint64_t k = 0; k < count; ++k) {
    const std::uint64_t at = map.target_of(origin + offsets[k]);
    if (at == StridedMap::kOutside) continue;
    with_cast(cast, unit_bytes, [&](auto conversion) {
      typename decltype(conversion)::From value;
      std::memcpy(&value, from + k * sizeof(value), sizeof(value));
      const typename decltype(conversion)::To converted = conversion.apply(value);
      std::memcpy(to + at * sizeof(converted), &converted, sizeof(converted));
    });
    ++written;
  }
  return written;
}

}  // namespace driftless::reference
