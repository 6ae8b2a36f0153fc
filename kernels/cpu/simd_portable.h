// SPDX-License-Identifier: Apache-2.0
// SIMD within a 64-bit register, for processors without another target; also x86 without AVX2.
//
// All simd_*.h have the same structure: a Vector, loads from any address, and the few operations
// that diff.cpp, digest_sums.cpp, digest_steps.cpp and hazard_sums.cpp use. `kUnit` is the unit's
// width in bytes: 1, 2, 4 or 8.
#pragma once

#include <cstdint>

namespace driftless::cpu::portable {
namespace {

using Vector = std::uint64_t;
constexpr unsigned kVectorBytes = sizeof(Vector);

inline Vector load(const unsigned char* at) {
  Vector v;
  __builtin_memcpy(&v, at, sizeof(v));
  return v;
}

// The lowest bit of every unit.
template <unsigned kUnit>
constexpr Vector lowest_bits() {
  if constexpr (kUnit == 8) {
    return 1;
  } else {
    return ~Vector{0} / ((Vector{1} << (8 * kUnit)) - 1);
  }
}

// Sets the highest bit of every unit in which a and b differ.
template <unsigned kUnit>
inline Vector differing_high_bits(Vector a, Vector b) {
  constexpr Vector kHigh = lowest_bits<kUnit>() << (8 * kUnit - 1);
  const Vector x = a ^ b;
  return (((x & ~kHigh) + ~kHigh) | x) & kHigh;
}

// Bit i of the result is the highest bit of unit i. One multiplication moves it to bit 64 - units +
// i.
template <unsigned kUnit>
inline std::uint64_t gather_high_bits(Vector high) {
  if constexpr (kUnit == 1) return ((high >> 7) * 0x0102040810204080ULL) >> 56;
  if constexpr (kUnit == 2) return ((high >> 15) * 0x1000200040008000ULL) >> 60;
  if constexpr (kUnit == 4) return ((high >> 31) * 0x4000000080000000ULL) >> 62;
  return high >> 63;
}

// Bit i of the result: unit i of the 64 units at a differs from unit i at b.
template <unsigned kUnit>
inline std::uint64_t differing64(const unsigned char* a, const unsigned char* b) {
  constexpr unsigned kUnitsPerVector = 8 / kUnit;
  std::uint64_t bits = 0;
  for (unsigned v = 0; v < 64 / kUnitsPerVector; ++v) {
    const Vector high = differing_high_bits<kUnit>(load(a + 8 * v), load(b + 8 * v));
    bits |= gather_high_bits<kUnit>(high) << (v * kUnitsPerVector);
  }
  return bits;
}

// Adds the products of 32-bit words and keys to 64-bit sums; half of the sums are in each vector.
inline void multiply_add(Vector& first, Vector& second, Vector words, Vector keys) {
  first += (words & 0xffffffffU) * (keys & 0xffffffffU);
  second += (words >> 32) * (keys >> 32);
}
inline Vector add_low_halves(Vector sums, Vector x) { return sums + (x & 0xffffffffU); }
inline Vector add_high_halves(Vector sums, Vector x) { return sums + (x >> 32); }
inline Vector zero() { return 0; }
inline std::uint64_t sum_64(Vector v) { return v; }

// Four sums, modulo 2^64, of signed products of a step and a key.
class StepSums {
 public:
  void add(const std::int32_t* keys, std::int32_t step) {
    for (unsigned i = 0; i < 4; ++i) sums_[i] += std::int64_t{step} * keys[i];
  }
  void store(std::int64_t* to) const {
    for (unsigned i = 0; i < 4; ++i) to[i] = sums_[i];
  }

 private:
  std::int64_t sums_[4] = {};
};

// Writes first, first + 1, ... to 64 places.
inline void store_iota64(std::uint32_t* at, std::uint32_t first) {
  for (std::uint32_t i = 0; i < 64; ++i) at[i] = first + i;
}

// hazard_sums() with SIMD; false if the target or the table does not allow it.
inline bool sum_by_shuffles(const std::uint16_t*, unsigned, unsigned, unsigned, unsigned, unsigned,
                            const unsigned char*, std::uint32_t, std::uint32_t*) {
  return false;
}

}  // namespace
}  // namespace driftless::cpu::portable
