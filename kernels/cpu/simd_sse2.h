// SPDX-License-Identifier: Apache-2.0
// SSE2, part of every x86_64 processor. The shape is explained in simd_portable.h.
#pragma once

#include <emmintrin.h>

#include <cstdint>

namespace driftless::cpu::sse2 {
namespace {

using Vector = __m128i;
constexpr unsigned kVectorBytes = sizeof(Vector);

inline Vector load(const unsigned char* at) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
}
inline void store(unsigned char* at, Vector v) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(at), v);
}

template <unsigned kUnit>
inline Vector broadcast(std::uint64_t value) {
  if constexpr (kUnit == 1) return _mm_set1_epi8(static_cast<char>(value));
  if constexpr (kUnit == 2) return _mm_set1_epi16(static_cast<short>(value));
  if constexpr (kUnit == 4) return _mm_set1_epi32(static_cast<int>(value));
  return _mm_set1_epi64x(static_cast<long long>(value));
}

template <unsigned kUnit>
inline Vector equal(Vector a, Vector b) {
  if constexpr (kUnit == 1) return _mm_cmpeq_epi8(a, b);
  if constexpr (kUnit == 2) return _mm_cmpeq_epi16(a, b);
  const Vector halves = _mm_cmpeq_epi32(a, b);
  if constexpr (kUnit == 4) return halves;
  return _mm_and_si128(halves, _mm_shuffle_epi32(halves, _MM_SHUFFLE(2, 3, 0, 1)));
}

inline Vector select(Vector mask, Vector a, Vector b) {
  return _mm_or_si128(_mm_and_si128(mask, a), _mm_andnot_si128(mask, b));
}

inline Vector count_bytes(Vector counts, Vector mask) { return _mm_sub_epi8(counts, mask); }
inline std::uint64_t sum_64(Vector v) {
  return static_cast<std::uint64_t>(_mm_cvtsi128_si64(v)) +
         static_cast<std::uint64_t>(_mm_cvtsi128_si64(_mm_unpackhi_epi64(v, v)));
}
inline std::uint64_t sum_bytes(Vector counts) {
  return sum_64(_mm_sad_epu8(counts, _mm_setzero_si128()));
}

// Two vectors of masks of kUnit bytes become one of kUnit / 2 bytes.
template <unsigned kUnit>
inline Vector narrow(Vector a, Vector b) {
  if constexpr (kUnit == 2) return _mm_packs_epi16(a, b);
  if constexpr (kUnit == 4) return _mm_packs_epi32(a, b);
  return _mm_castps_si128(
      _mm_shuffle_ps(_mm_castsi128_ps(a), _mm_castsi128_ps(b), _MM_SHUFFLE(2, 0, 2, 0)));
}

// Masks of kTo bytes for the 16 / kTo units of kUnit bytes at a and b.
template <unsigned kUnit, unsigned kTo>
inline Vector equal_narrowed(const unsigned char* a, const unsigned char* b) {
  if constexpr (kTo == kUnit) {
    return equal<kUnit>(load(a), load(b));
  } else {
    constexpr unsigned kHalf = 16 / (2 * kTo) * kUnit;
    return narrow<2 * kTo>(equal_narrowed<kUnit, 2 * kTo>(a, b),
                           equal_narrowed<kUnit, 2 * kTo>(a + kHalf, b + kHalf));
  }
}

template <unsigned kUnit>
inline std::uint64_t differing64(const unsigned char* a, const unsigned char* b) {
  std::uint64_t equal_bits = 0;
  for (unsigned i = 0; i < 4; ++i) {
    const unsigned at = 16 * kUnit * i;
    const int bits = _mm_movemask_epi8(equal_narrowed<kUnit, 1>(a + at, b + at));
    equal_bits |= static_cast<std::uint64_t>(static_cast<unsigned>(bits)) << (16 * i);
  }
  return ~equal_bits;
}

inline void multiply_add(Vector& first, Vector& second, Vector words, Vector keys) {
  first = _mm_add_epi64(first, _mm_mul_epu32(words, keys));
  second =
      _mm_add_epi64(second, _mm_mul_epu32(_mm_srli_epi64(words, 32), _mm_srli_epi64(keys, 32)));
}
inline Vector add_low_halves(Vector sums, Vector x) {
  return _mm_add_epi64(sums, _mm_and_si128(x, _mm_set1_epi64x(0xffffffff)));
}
inline Vector add_high_halves(Vector sums, Vector x) {
  return _mm_add_epi64(sums, _mm_srli_epi64(x, 32));
}
inline Vector zero() { return _mm_setzero_si128(); }

// SSE2 multiplies only without signs, so scalar.
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

inline void store_iota64(std::uint32_t* at, std::uint32_t first) {
  Vector v = _mm_add_epi32(_mm_set1_epi32(static_cast<int>(first)), _mm_setr_epi32(0, 1, 2, 3));
  for (unsigned i = 0; i < 64; i += 4) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(at + i), v);
    v = _mm_add_epi32(v, _mm_set1_epi32(4));
  }
}

}  // namespace
}  // namespace driftless::cpu::sse2
