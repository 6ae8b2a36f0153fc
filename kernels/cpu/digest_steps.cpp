// SPDX-License-Identifier: Apache-2.0
// Compiled once per SIMD target: see operations.h before adding an include.
#include DRIFTLESS_SIMD_HEADER

#include "kernels/cpu/operations.h"

namespace driftless::cpu::DRIFTLESS_SIMD_TARGET {
namespace {

template <typename Unit>
inline Unit load_unit(const unsigned char* values, std::uint64_t k) {
  Unit unit;
  __builtin_memcpy(&unit, values + k * sizeof(Unit), sizeof(Unit));
  return unit;
}
template <typename Unit>
inline void store_unit(unsigned char* units, std::uint64_t at, Unit unit) {
  __builtin_memcpy(units + at * sizeof(Unit), &unit, sizeof(Unit));
}

template <typename Unit, bool kWrite>
unsigned sum_blocks(UnitChanges& changes, const HalfKeys* keys, BlockSteps* blocks,
                    unsigned max_blocks) {
  constexpr std::uint64_t kBlockUnits = kDigestBlockHalves * 2 / sizeof(Unit);
  const std::uint32_t* const offsets = changes.offsets;
  const unsigned char* const before = changes.old_values;
  const unsigned char* const after = changes.new_values;
  const std::uint64_t count = changes.count;
  unsigned char* const units = changes.units;
  std::uint64_t k = changes.done;
  unsigned found = 0;
  for (; k < count && found < max_blocks; ++found) {
    const std::uint64_t block = (changes.origin + offsets[k]) / kBlockUnits;
    const std::uint64_t shift = changes.origin - block * kBlockUnits;  // modulo 2^64
    StepSums sums;
    for (; k < count; ++k) {
      const std::uint64_t place = shift + offsets[k];
      if (place >= kBlockUnits) break;
      const Unit value = load_unit<Unit>(after, k);
      if constexpr (kWrite) store_unit<Unit>(units, offsets[k], value);
      const std::int32_t shifted = sizeof(Unit) == 1 ? 1 << (8 * (place % 2)) : 1;
      const std::int32_t step = std::int32_t{value} - std::int32_t{load_unit<Unit>(before, k)};
      sums.add(keys[place * sizeof(Unit) / 2].limbs, step * shifted);
    }
    blocks[found].block = block;
    sums.store(blocks[found].sums);
  }
  changes.done = k;
  return found;
}

template <typename Unit>
unsigned sum_units(UnitChanges& changes, const HalfKeys* keys, BlockSteps* blocks,
                   unsigned max_blocks) {
  return changes.units == nullptr ? sum_blocks<Unit, false>(changes, keys, blocks, max_blocks)
                                  : sum_blocks<Unit, true>(changes, keys, blocks, max_blocks);
}

}  // namespace

unsigned digest_steps(UnitChanges& changes, const HalfKeys* keys, BlockSteps* blocks,
                      unsigned max_blocks) {
  return changes.unit_bytes == 1 ? sum_units<std::uint8_t>(changes, keys, blocks, max_blocks)
                                 : sum_units<std::uint16_t>(changes, keys, blocks, max_blocks);
}

}  // namespace driftless::cpu::DRIFTLESS_SIMD_TARGET
