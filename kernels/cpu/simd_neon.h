// SPDX-License-Identifier: Apache-2.0
// Advanced SIMD, part of every aarch64 processor. The shape is explained in simd_portable.h.
#pragma once

#include <arm_neon.h>

#include <cstdint>

namespace driftless::cpu::neon {
namespace {

using Vector = uint8x16_t;
constexpr unsigned kVectorBytes = sizeof(Vector);

inline Vector load(const unsigned char* at) { return vld1q_u8(at); }

template <unsigned kUnit>
inline Vector equal(Vector a, Vector b) {
  if constexpr (kUnit == 1) return vceqq_u8(a, b);
  if constexpr (kUnit == 2) {
    return vreinterpretq_u8_u16(vceqq_u16(vreinterpretq_u16_u8(a), vreinterpretq_u16_u8(b)));
  }
  if constexpr (kUnit == 4) {
    return vreinterpretq_u8_u32(vceqq_u32(vreinterpretq_u32_u8(a), vreinterpretq_u32_u8(b)));
  }
  return vreinterpretq_u8_u64(vceqq_u64(vreinterpretq_u64_u8(a), vreinterpretq_u64_u8(b)));
}

// All ones in byte i where unit i of the 16 at a equals that at b.
template <unsigned kUnit>
inline Vector equal16(const unsigned char* a, const unsigned char* b) {
  if constexpr (kUnit == 1) {
    return vceqq_u8(load(a), load(b));
  } else {
    // Masks of two vectors become one of units half as wide, down to bytes.
    Vector masks[kUnit];
    for (unsigned i = 0; i < kUnit; ++i) {
      masks[i] = equal<kUnit>(load(a + 16 * i), load(b + 16 * i));
    }
    for (unsigned n = kUnit / 2; n >= 1; n /= 2) {
      for (unsigned i = 0; i < n; ++i) masks[i] = vuzp1q_u8(masks[2 * i], masks[2 * i + 1]);
    }
    return masks[0];
  }
}

template <unsigned kUnit>
inline std::uint64_t differing64(const unsigned char* a, const unsigned char* b) {
  const Vector weights =
      vreinterpretq_u8_u64(vdupq_n_u64(0x8040201008040201ULL));  // 1, 2, 4, ... 128, 1, 2, ...
  const auto weighted = [&](unsigned i) {
    return vbicq_u8(weights, equal16<kUnit>(a + 16 * kUnit * i, b + 16 * kUnit * i));
  };
  const Vector first = vpaddq_u8(weighted(0), weighted(1));
  const Vector second = vpaddq_u8(weighted(2), weighted(3));
  const Vector all = vpaddq_u8(first, second);
  return vgetq_lane_u64(vreinterpretq_u64_u8(vpaddq_u8(all, all)), 0);
}

inline void multiply_add(Vector& first, Vector& second, Vector words, Vector keys) {
  const uint32x4_t w = vreinterpretq_u32_u8(words), k = vreinterpretq_u32_u8(keys);
  first = vreinterpretq_u8_u64(
      vmlal_u32(vreinterpretq_u64_u8(first), vget_low_u32(w), vget_low_u32(k)));
  second = vreinterpretq_u8_u64(vmlal_high_u32(vreinterpretq_u64_u8(second), w, k));
}
inline Vector add_low_halves(Vector sums, Vector x) {
  const uint64x2_t low = vandq_u64(vreinterpretq_u64_u8(x), vdupq_n_u64(0xffffffffU));
  return vreinterpretq_u8_u64(vaddq_u64(vreinterpretq_u64_u8(sums), low));
}
inline Vector add_high_halves(Vector sums, Vector x) {
  return vreinterpretq_u8_u64(vsraq_n_u64(vreinterpretq_u64_u8(sums), vreinterpretq_u64_u8(x), 32));
}
inline Vector zero() { return vdupq_n_u8(0); }
inline std::uint64_t sum_64(Vector v) { return vaddvq_u64(vreinterpretq_u64_u8(v)); }

class StepSums {
 public:
  void add(const std::int32_t* keys, std::int32_t step) {
    const int32x4_t k = vld1q_s32(keys);
    const int32x4_t s = vdupq_n_s32(step);
    first_ = vmlal_s32(first_, vget_low_s32(k), vget_low_s32(s));
    second_ = vmlal_high_s32(second_, k, s);
  }
  void store(std::int64_t* to) const {
    vst1q_s64(to, first_);
    vst1q_s64(to + 2, second_);
  }

 private:
  int64x2_t first_ = vdupq_n_s64(0), second_ = vdupq_n_s64(0);
};

inline void store_iota64(std::uint32_t* at, std::uint32_t first) {
  const std::uint32_t steps[4] = {0, 1, 2, 3};
  uint32x4_t v = vaddq_u32(vdupq_n_u32(first), vld1q_u32(steps));
  for (unsigned i = 0; i < 64; i += 4) {
    vst1q_u32(at + i, v);
    v = vaddq_u32(v, vdupq_n_u32(4));
  }
}

}  // namespace
}  // namespace driftless::cpu::neon
