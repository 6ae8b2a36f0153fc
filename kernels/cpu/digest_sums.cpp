// SPDX-License-Identifier: Apache-2.0
// Compiled once per SIMD target: see operations.h before adding an include.
#include DRIFTLESS_SIMD_HEADER

#include "kernels/cpu/operations.h"

namespace driftless::cpu::DRIFTLESS_SIMD_TARGET {
namespace {

// A 64-bit sum has room for 16 products of 32 by 28 bits; a vector of words adds one product to
// each of two sums.
constexpr unsigned kVectorsPerGroup = 16;
constexpr unsigned kWordsPerVector = kVectorBytes / 4;
constexpr unsigned kWordsPerGroup = kVectorsPerGroup * kWordsPerVector;

inline const unsigned char* bytes_of(const std::uint32_t* words) {
  return reinterpret_cast<const unsigned char*>(words);
}

void add_tail(const unsigned char* words, std::uint32_t from, std::uint32_t count,
              const std::uint32_t* keys, WideSum& sum) {
  for (std::uint32_t i = from; i < count; ++i) {
    std::uint32_t word;
    __builtin_memcpy(&word, words + std::uint64_t{i} * 4, 4);
    const std::uint64_t product = std::uint64_t{word} * keys[i];
    sum.low += product & 0xffffffffU;
    sum.high += product >> 32;
  }
}

}  // namespace

void digest_sums(const void* words, std::uint32_t count,
                 const std::uint32_t* const keys[kDigestKeyStreams],
                 WideSum sums[kDigestKeyStreams]) {
  const auto* in = static_cast<const unsigned char*>(words);
  const unsigned char* key[kDigestKeyStreams];
  Vector low[kDigestKeyStreams], high[kDigestKeyStreams];
  for (unsigned s = 0; s < kDigestKeyStreams; ++s) {
    low[s] = high[s] = zero();
    key[s] = bytes_of(keys[s]);
  }
  std::uint32_t i = 0;
  for (; count - i >= kWordsPerGroup; i += kWordsPerGroup) {
    Vector first[kDigestKeyStreams], second[kDigestKeyStreams];
    for (unsigned s = 0; s < kDigestKeyStreams; ++s) first[s] = second[s] = zero();
#pragma GCC unroll 16
    for (unsigned v = 0; v < kVectorsPerGroup; ++v) {
      const Vector piece = load(in + v * kVectorBytes);
      for (unsigned s = 0; s < kDigestKeyStreams; ++s) {
        multiply_add(first[s], second[s], piece, load(key[s] + v * kVectorBytes));
      }
    }
    in += kVectorsPerGroup * kVectorBytes;
    for (unsigned s = 0; s < kDigestKeyStreams; ++s) {
      key[s] += kVectorsPerGroup * kVectorBytes;
      low[s] = add_low_halves(add_low_halves(low[s], first[s]), second[s]);
      high[s] = add_high_halves(add_high_halves(high[s], first[s]), second[s]);
    }
  }
  for (unsigned s = 0; s < kDigestKeyStreams; ++s) {
    sums[s] = {sum_64(low[s]), sum_64(high[s])};
    add_tail(static_cast<const unsigned char*>(words), i, count, keys[s], sums[s]);
  }
}

}  // namespace driftless::cpu::DRIFTLESS_SIMD_TARGET
