// SPDX-License-Identifier: Apache-2.0
// Advanced SIMD, part of every aarch64 processor. simd_portable.h explains the structure.
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

// Byte i is all ones if unit i of the 16 units at a equals unit i at b.
template <unsigned kUnit>
inline Vector equal16(const unsigned char* a, const unsigned char* b) {
  if constexpr (kUnit == 1) {
    return vceqq_u8(load(a), load(b));
  } else {
    // Narrows masks of two vectors to one of units half as wide, until units are bytes.
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

// The classes of the 16 units at `at`, as bytes.
template <unsigned kUnit>
inline uint8x16_t classes16(const unsigned char* at, unsigned shift, unsigned mask) {
  uint16x8_t first, second;
  if constexpr (kUnit == 1) {
    const int8x16_t down = vdupq_n_s8(static_cast<std::int8_t>(-static_cast<int>(shift)));
    return vandq_u8(vshlq_u8(load(at), down), vdupq_n_u8(static_cast<std::uint8_t>(mask)));
  } else if constexpr (kUnit == 2) {
    first = vreinterpretq_u16_u8(load(at));
    second = vreinterpretq_u16_u8(load(at + 16));
  } else {  // the class is in the upper halves
    const auto halves = [&](unsigned i) { return vreinterpretq_u16_u8(load(at + 16 * i)); };
    first = vuzp2q_u16(halves(0), halves(1));
    second = vuzp2q_u16(halves(2), halves(3));
    shift -= 16;
  }
  const int16x8_t down = vdupq_n_s16(static_cast<std::int16_t>(-static_cast<int>(shift)));
  const uint8x16_t classes = vuzp1q_u8(vreinterpretq_u8_u16(vshlq_u16(first, down)),
                                       vreinterpretq_u8_u16(vshlq_u16(second, down)));
  return vandq_u8(classes, vdupq_n_u8(static_cast<std::uint8_t>(mask)));
}

// The hazards of a window of 64 classes, low and high bytes in separate vectors.
struct HazardWindow {
  uint8x16x4_t low, high;
  uint8x16_t first;
};
template <unsigned kRegisters>
inline uint8x16_t look_up(const uint8x16x4_t& table, uint8x16_t at) {
  if constexpr (kRegisters == 2) {
    const uint8x16x2_t two{{table.val[0], table.val[1]}};
    return vqtbl2q_u8(two, at);
  } else {
    return vqtbl4q_u8(table, at);
  }
}
// The sum of each of four vectors of bytes.
inline uint32x4_t sum_bytes(const uint8x16_t v[4]) {
  const uint16x8_t a = vpaddq_u16(vpaddlq_u8(v[0]), vpaddlq_u8(v[1]));
  const uint16x8_t b = vpaddq_u16(vpaddlq_u8(v[2]), vpaddlq_u8(v[3]));
  return vpaddlq_u16(vpaddq_u16(a, b));
}

template <unsigned kUnit, unsigned kRegisters>
inline void sum_groups(const HazardWindow& window, unsigned shift, unsigned mask,
                       const unsigned char* units, std::uint32_t groups, std::uint32_t* sums) {
  const uint32x4_t zeros = vdupq_n_u32(0);
  uint32x4_t before = zeros;
  sums[0] = 0;
  std::uint32_t g = 0;
  const auto look = [&](const unsigned char* at, uint8x16_t& low, uint8x16_t& high) {
    const uint8x16_t classes = vsubq_u8(classes16<kUnit>(at, shift, mask), window.first);
    low = look_up<kRegisters>(window.low, classes);
    high = look_up<kRegisters>(window.high, classes);
  };
  for (; groups - g >= 4; g += 4) {
    uint8x16_t low[4], high[4];
    for (unsigned i = 0; i < 4; ++i, units += 16 * kUnit) look(units, low[i], high[i]);
    uint32x4_t sum = vaddq_u32(sum_bytes(low), vshlq_n_u32(sum_bytes(high), 8));
    sum = vaddq_u32(sum, vextq_u32(zeros, sum, 3));
    sum = vaddq_u32(sum, vextq_u32(zeros, sum, 2));
    sum = vaddq_u32(sum, before);
    vst1q_u32(sums + g + 1, sum);
    before = vdupq_laneq_u32(sum, 3);
  }
  for (; g < groups; ++g, units += 16 * kUnit) {
    uint8x16_t low, high;
    look(units, low, high);
    const std::uint32_t sum = vaddlvq_u8(low) + (std::uint32_t{vaddlvq_u8(high)} << 8);
    sums[g + 1] = sums[g] + sum;
  }
}

inline bool sum_by_shuffles(const std::uint16_t* hazards, unsigned unit_bytes, unsigned shift,
                            unsigned mask, unsigned first, unsigned end, const unsigned char* units,
                            std::uint32_t groups, std::uint32_t* sums) {
  if (end > first + 64) return false;
  // Classes outside of the window read a zero.
  unsigned char low[64] = {}, high[64] = {};
  for (unsigned c = first; c < end; ++c) {
    low[c - first] = static_cast<unsigned char>(hazards[c]);
    high[c - first] = static_cast<unsigned char>(hazards[c] >> 8);
  }
  const HazardWindow window{vld1q_u8_x4(low), vld1q_u8_x4(high),
                            vdupq_n_u8(static_cast<std::uint8_t>(first))};
  const bool narrow = end <= first + 32;
  const auto sum = [&](auto narrow_sum, auto wide_sum) {
    (narrow ? narrow_sum : wide_sum)(window, shift, mask, units, groups, sums);
  };
  switch (unit_bytes) {
    case 1: sum(sum_groups<1, 2>, sum_groups<1, 4>); break;
    case 2: sum(sum_groups<2, 2>, sum_groups<2, 4>); break;
    default: sum(sum_groups<4, 2>, sum_groups<4, 4>); break;
  }
  return true;
}

}  // namespace
}  // namespace driftless::cpu::neon
