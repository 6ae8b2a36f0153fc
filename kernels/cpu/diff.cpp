// SPDX-License-Identifier: Apache-2.0
// Compiled once per SIMD target: see operations.h before adding an include.
#include DRIFTLESS_SIMD_HEADER

#include "kernels/cpu/operations.h"

namespace driftless::cpu::DRIFTLESS_SIMD_TARGET {
namespace {

template <unsigned kUnit>
inline void copy_unit(unsigned char* to, const unsigned char* from) {
  __builtin_memcpy(to, from, kUnit);
}

struct Sides {
  const unsigned char* before;
  const unsigned char* after;
};

// The places of the next results. Old units are written only if requested (kOld).
template <unsigned kUnit, bool kOld>
struct Output {
  std::uint32_t* offsets;
  unsigned char* values;
  unsigned char* old_values;
  std::uint32_t count = 0;

  void put(std::uint32_t at, const Sides& sides) {
    const std::uint64_t from = std::uint64_t{at} * kUnit, to = std::uint64_t{count} * kUnit;
    offsets[count] = at;
    copy_unit<kUnit>(values + to, sides.after + from);
    if constexpr (kOld) copy_unit<kUnit>(old_values + to, sides.before + from);
  }
  void put_all64(std::uint32_t first, const Sides& sides) {
    const std::uint64_t from = std::uint64_t{first} * kUnit, to = std::uint64_t{count} * kUnit;
    store_iota64(offsets + count, first);
    __builtin_memcpy(values + to, sides.after + from, 64 * kUnit);
    if constexpr (kOld) __builtin_memcpy(old_values + to, sides.before + from, 64 * kUnit);
    count += 64;
  }
  // A branch on the first or the second change would be mispredicted half of the time, so both are
  // always written, possibly into the slack; only a third change is a branch.
  void put_some(std::uint32_t first, std::uint64_t bits, const Sides& sides) {
    constexpr std::uint64_t kStop = std::uint64_t{1} << 63;  // keeps the count of zeros defined
    const auto changes = static_cast<std::uint32_t>(__builtin_popcountll(bits));
    const std::uint32_t end = count + changes;
    put(first + static_cast<std::uint32_t>(__builtin_ctzll(bits | kStop)), sides);
    bits &= bits - 1;
    ++count;
    put(first + static_cast<std::uint32_t>(__builtin_ctzll(bits | kStop)), sides);
    if (__builtin_expect(changes > 2, 0)) {
      for (bits &= bits - 1; bits != 0; bits &= bits - 1) {
        ++count;
        put(first + static_cast<std::uint32_t>(__builtin_ctzll(bits)), sides);
      }
    }
    count = end;
  }
};

template <unsigned kUnit, bool kOld>
std::uint32_t diff_units(const Sides& sides, std::uint32_t count, Output<kUnit, kOld> output) {
  std::uint32_t i = 0;
  for (; count - i >= 64; i += 64) {
    const std::uint64_t at = std::uint64_t{i} * kUnit;
    const std::uint64_t bits = differing64<kUnit>(sides.before + at, sides.after + at);
    if (__builtin_expect(bits == ~std::uint64_t{0}, 0)) {
      output.put_all64(i, sides);
    } else {
      output.put_some(i, bits, sides);
    }
  }
  for (; i < count; ++i) {
    const std::uint64_t at = std::uint64_t{i} * kUnit;
    if (__builtin_memcmp(sides.before + at, sides.after + at, kUnit) == 0) continue;
    output.put(i, sides);
    ++output.count;
  }
  return output.count;
}

template <unsigned kUnit>
std::uint32_t diff_width(const Sides& sides, std::uint32_t count, std::uint32_t* offsets,
                         unsigned char* values, unsigned char* old_values) {
  if (old_values == nullptr) {
    return diff_units<kUnit, false>(sides, count, {offsets, values, nullptr});
  }
  return diff_units<kUnit, true>(sides, count, {offsets, values, old_values});
}

}  // namespace

std::uint32_t diff(const void* old_units, const void* new_units, std::uint32_t count,
                   unsigned unit_bytes, std::uint32_t* offsets, void* values, void* old_values) {
  const Sides sides{static_cast<const unsigned char*>(old_units),
                    static_cast<const unsigned char*>(new_units)};
  auto* const out = static_cast<unsigned char*>(values);
  auto* const old_out = static_cast<unsigned char*>(old_values);
  switch (unit_bytes) {
    case 1: return diff_width<1>(sides, count, offsets, out, old_out);
    case 2: return diff_width<2>(sides, count, offsets, out, old_out);
    case 4: return diff_width<4>(sides, count, offsets, out, old_out);
    default: return diff_width<8>(sides, count, offsets, out, old_out);
  }
}

}  // namespace driftless::cpu::DRIFTLESS_SIMD_TARGET
