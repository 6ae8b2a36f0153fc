// SPDX-License-Identifier: Apache-2.0
// Compiled once per SIMD target: see operations.h before adding an include. The compiler vectorizes
// the loop.
#include <cstdint>

#include "kernels/cpu/operations.h"

namespace driftless::cpu::DRIFTLESS_SIMD_TARGET {
namespace {

template <typename Unit>
std::uint64_t overwrite_units(unsigned char* target, const unsigned char* source,
                              std::uint64_t count, std::uint64_t sentinel) {
  // Units are counted in blocks, because a count must fit a Unit: vectors of units hold the counts.
  constexpr std::uint64_t kBlock = sizeof(Unit) == 1 ? 240 : 4096;
  const auto keep = static_cast<Unit>(sentinel);
  std::uint64_t written = count;
  for (std::uint64_t i = 0; i < count;) {
    const std::uint64_t end = count - i < kBlock ? count : i + kBlock;
    Unit kept = 0;
    for (; i < end; ++i) {
      Unit there, incoming;
      __builtin_memcpy(&there, target + i * sizeof(Unit), sizeof(Unit));
      __builtin_memcpy(&incoming, source + i * sizeof(Unit), sizeof(Unit));
      const Unit result = incoming == keep ? there : incoming;
      kept = static_cast<Unit>(kept + (incoming == keep ? 1 : 0));
      __builtin_memcpy(target + i * sizeof(Unit), &result, sizeof(Unit));
    }
    written -= kept;
  }
  return written;
}

}  // namespace

std::uint64_t masked_overwrite(void* target_units, const void* source, std::uint64_t count,
                               unsigned unit_bytes, std::uint64_t sentinel) {
  auto* to = static_cast<unsigned char*>(target_units);
  const auto* from = static_cast<const unsigned char*>(source);
  switch (unit_bytes) {
    case 1: return overwrite_units<std::uint8_t>(to, from, count, sentinel);
    case 2: return overwrite_units<std::uint16_t>(to, from, count, sentinel);
    case 4: return overwrite_units<std::uint32_t>(to, from, count, sentinel);
    default: return overwrite_units<std::uint64_t>(to, from, count, sentinel);
  }
}

}  // namespace driftless::cpu::DRIFTLESS_SIMD_TARGET
