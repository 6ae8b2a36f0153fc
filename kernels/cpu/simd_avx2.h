// SPDX-License-Identifier: Apache-2.0
// AVX2; host_kernels.cpp checks that the processor has it. simd_portable.h explains the structure.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace driftless::cpu::avx2 {
namespace {

using Vector = __m256i;
constexpr unsigned kVectorBytes = sizeof(Vector);

inline Vector load(const unsigned char* at) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
}

template <unsigned kUnit>
inline Vector equal(Vector a, Vector b) {
  if constexpr (kUnit == 1) return _mm256_cmpeq_epi8(a, b);
  if constexpr (kUnit == 2) return _mm256_cmpeq_epi16(a, b);
  if constexpr (kUnit == 4) return _mm256_cmpeq_epi32(a, b);
  return _mm256_cmpeq_epi64(a, b);
}

inline std::uint64_t sum_64(Vector v) {
  const __m128i two = _mm_add_epi64(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  return static_cast<std::uint64_t>(_mm_cvtsi128_si64(two)) +
         static_cast<std::uint64_t>(_mm_extract_epi64(two, 1));
}

// One bit for each unit of a vector, or, for units of 2 bytes, of two vectors.
template <unsigned kUnit>
inline std::uint64_t equal_bits(const unsigned char* a, const unsigned char* b) {
  const Vector mask = equal<kUnit>(load(a), load(b));
  if constexpr (kUnit == 1) return static_cast<unsigned>(_mm256_movemask_epi8(mask));
  if constexpr (kUnit == 2) {
    const Vector second = equal<kUnit>(load(a + 32), load(b + 32));
    // The pack works within halves; the permutation restores the order of the quarters.
    const Vector bytes =
        _mm256_permute4x64_epi64(_mm256_packs_epi16(mask, second), _MM_SHUFFLE(3, 1, 2, 0));
    return static_cast<unsigned>(_mm256_movemask_epi8(bytes));
  }
  if constexpr (kUnit == 4) {
    return static_cast<unsigned>(_mm256_movemask_ps(_mm256_castsi256_ps(mask)));
  }
  return static_cast<unsigned>(_mm256_movemask_pd(_mm256_castsi256_pd(mask)));
}

template <unsigned kUnit>
inline std::uint64_t differing64(const unsigned char* a, const unsigned char* b) {
  constexpr unsigned kUnitsPerStep = kUnit <= 2 ? 32 : 32 / kUnit;
  std::uint64_t bits = 0;
  for (unsigned i = 0; i < 64; i += kUnitsPerStep) {
    bits |= equal_bits<kUnit>(a + i * kUnit, b + i * kUnit) << i;
  }
  return ~bits;
}

inline void multiply_add(Vector& first, Vector& second, Vector words, Vector keys) {
  first = _mm256_add_epi64(first, _mm256_mul_epu32(words, keys));
  second = _mm256_add_epi64(
      second, _mm256_mul_epu32(_mm256_srli_epi64(words, 32), _mm256_srli_epi64(keys, 32)));
}
inline Vector add_low_halves(Vector sums, Vector x) {
  return _mm256_add_epi64(sums, _mm256_and_si256(x, _mm256_set1_epi64x(0xffffffff)));
}
inline Vector add_high_halves(Vector sums, Vector x) {
  return _mm256_add_epi64(sums, _mm256_srli_epi64(x, 32));
}
inline Vector zero() { return _mm256_setzero_si256(); }

class StepSums {
 public:
  void add(const std::int32_t* keys, std::int32_t step) {
    const Vector k = _mm256_cvtepi32_epi64(_mm_loadu_si128(reinterpret_cast<const __m128i*>(keys)));
    sums_ = _mm256_add_epi64(sums_, _mm256_mul_epi32(k, _mm256_set1_epi32(step)));
  }
  void store(std::int64_t* to) const { _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), sums_); }

 private:
  Vector sums_ = _mm256_setzero_si256();
};

inline void store_iota64(std::uint32_t* at, std::uint32_t first) {
  Vector v = _mm256_add_epi32(_mm256_set1_epi32(static_cast<int>(first)),
                              _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  for (unsigned i = 0; i < 64; i += 8) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(at + i), v);
    v = _mm256_add_epi32(v, _mm256_set1_epi32(8));
  }
}

inline bool sum_by_shuffles(const std::uint16_t*, unsigned, unsigned, unsigned, unsigned, unsigned,
                            const unsigned char*, std::uint32_t, std::uint32_t*) {
  return false;
}

}  // namespace
}  // namespace driftless::cpu::avx2
