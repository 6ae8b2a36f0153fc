// SPDX-License-Identifier: Apache-2.0
// Compiled once per SIMD target: see operations.h before adding an include.
#include DRIFTLESS_SIMD_HEADER

#include "kernels/cpu/operations.h"

namespace driftless::cpu::DRIFTLESS_SIMD_TARGET {
namespace {

template <typename Unit>
void sum_looked_up(const HazardTable& table, const unsigned char* units, std::uint32_t groups,
                   std::uint32_t* sums) {
  std::uint32_t sum = 0;
  for (std::uint32_t g = 0; g < groups; ++g) {
    sums[g] = sum;
    for (unsigned i = 0; i < kHazardGroup; ++i, units += sizeof(Unit)) {
      Unit unit;
      __builtin_memcpy(&unit, units, sizeof(Unit));
      sum += table.hazards[(std::uint32_t{unit} >> table.shift) & table.mask];
    }
  }
  sums[groups] = sum;
}

}  // namespace

void hazard_sums(const HazardTable& table, const void* units, std::uint32_t groups,
                 std::uint32_t* sums) {
  const auto* const from = static_cast<const unsigned char*>(units);
  if (sum_by_shuffles(table.hazards, table.unit_bytes, table.shift, table.mask, table.first,
                      table.end, from, groups, sums)) {
    return;
  }
  switch (table.unit_bytes) {
    case 1: return sum_looked_up<std::uint8_t>(table, from, groups, sums);
    case 2: return sum_looked_up<std::uint16_t>(table, from, groups, sums);
    default: return sum_looked_up<std::uint32_t>(table, from, groups, sums);
  }
}

}  // namespace driftless::cpu::DRIFTLESS_SIMD_TARGET
