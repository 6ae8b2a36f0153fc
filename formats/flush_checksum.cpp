// SPDX-License-Identifier: Apache-2.0
// flush_checksum(): the checksum in flush files. It is an XOR, so parts of the streams are summed
// apart, by several threads.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <numeric>
#include <string>
#include <type_traits>
#include <vector>

#include "core/parallel.h"
#include "formats/flush_file.h"

namespace driftless {
namespace {

constexpr std::uint64_t kQuietBit = std::uint64_t{1} << 51;
constexpr std::uint64_t kInfinityBits = std::uint64_t{0x7ff} << 52;
// The widened form of the float32 that represents the only NaN of E8M0 and FNUZ types.
constexpr std::uint64_t kOnlyNan = kInfinityBits | kQuietBit | (std::uint64_t{1} << 29);

enum class Specials : unsigned char {
  kIeee,  // the highest exponent is infinity and NaN
  kFn,    // the only NaN has all bits set, no infinity
  kFnuz,  // the only NaN is the negative zero, no infinity
};

struct SmallFloat {
  unsigned exponent_bits;
  unsigned mantissa_bits;
  int bias;
  Specials specials;
};

std::uint64_t widen_float(std::uint64_t bits, const SmallFloat& type) {
  const unsigned magnitude_bits = type.exponent_bits + type.mantissa_bits;
  const std::uint64_t sign = bits >> magnitude_bits << 63;
  const std::uint64_t magnitude = bits & ((std::uint64_t{1} << magnitude_bits) - 1);
  const std::uint64_t exponent = magnitude >> type.mantissa_bits;
  const std::uint64_t mantissa = magnitude & ((std::uint64_t{1} << type.mantissa_bits) - 1);
  const bool highest = exponent == (std::uint64_t{1} << type.exponent_bits) - 1;
  const bool ones = magnitude == (std::uint64_t{1} << magnitude_bits) - 1;

  if (type.specials == Specials::kFnuz && magnitude == 0 && sign != 0) return kOnlyNan;
  if (type.specials == Specials::kIeee && highest && mantissa == 0) return sign | kInfinityBits;
  if ((type.specials == Specials::kIeee && highest) || (type.specials == Specials::kFn && ones)) {
    return sign | kInfinityBits | kQuietBit | mantissa << (52 - type.mantissa_bits);
  }
  const std::uint64_t leading = exponent == 0 ? 0 : std::uint64_t{1} << type.mantissa_bits;
  const int scale = static_cast<int>(exponent == 0 ? 1 : exponent) - type.bias -
                    static_cast<int>(type.mantissa_bits);
  const double value = std::ldexp(static_cast<double>(leading | mantissa), scale);
  return sign | std::bit_cast<std::uint64_t>(value);
}

// Widens a value of a type of one or two bytes.
std::uint64_t widen_small(std::uint16_t bits, DType dtype) {
  switch (dtype) {
    case DType::kF16: return widen_float(bits, {5, 10, 15, Specials::kIeee});
    case DType::kBF16: return widen_float(bits, {8, 7, 127, Specials::kIeee});
    case DType::kF8E5M2: return widen_float(bits, {5, 2, 15, Specials::kIeee});
    case DType::kF8E4M3: return widen_float(bits, {4, 3, 7, Specials::kFn});
    case DType::kF8E4M3Fnuz: return widen_float(bits, {4, 3, 8, Specials::kFnuz});
    case DType::kF8E5M2Fnuz: return widen_float(bits, {5, 2, 16, Specials::kFnuz});
    case DType::kF8E8M0:
      if (bits == 0xff) return kOnlyNan;
      return std::bit_cast<std::uint64_t>(std::ldexp(1.0, static_cast<int>(bits) - 127));
    case DType::kI8: return static_cast<std::uint64_t>(static_cast<std::int8_t>(bits));
    case DType::kI16: return static_cast<std::uint64_t>(static_cast<std::int16_t>(bits));
    default: return bits;
  }
}

// Equal values cancel in pairs, so it suffices to know which of the 2^16 values occur an odd number
// of times, and to widen only those.
template <typename T>
std::uint64_t xor_small(std::span<const std::byte> values, DType dtype) {
  std::array<std::uint64_t, 1024> odd{};
  for (std::size_t at = 0; at < values.size(); at += sizeof(T)) {
    T bits;
    std::memcpy(&bits, values.data() + at, sizeof(T));
    odd[bits / 64] ^= std::uint64_t{1} << (bits % 64);
  }
  std::uint64_t result = 0;
  for (std::size_t word = 0; word < odd.size(); ++word) {
    for (std::uint64_t left = odd[word]; left != 0; left &= left - 1) {
      const std::size_t bits = word * 64 + static_cast<std::size_t>(std::countr_zero(left));
      result ^= widen_small(static_cast<std::uint16_t>(bits), dtype);
    }
  }
  return result;
}

// Widens a bf16 that is neither zero nor subnormal, infinite or NaN. The exponent's bias grows by
// 0x380: three bits become the opposite of the exponent's highest bit, the others stay. `flipped`
// is 1 for one value. Every bit of the result is an XOR of bits of the argument, so the XOR of
// several values can be widened at once; `flipped` is then 1 if their number is odd.
std::uint64_t widen_normal_bf16(std::uint64_t bits, std::uint64_t flipped) {
  const std::uint64_t highest = bits >> 14 & 1;
  const std::uint64_t opposite = highest ^ flipped;
  return (bits >> 15 & 1) << 63 | highest << 62 | opposite * 7 << 59 | (bits & 0x3fff) << 45;
}

// XORs all values first and widens the result once, so the loop runs at the speed of memory. Values
// that are not normal are rare: a scan finds the blocks that hold any, and corrects each value.
std::uint64_t xor_bf16(std::span<const std::byte> values) {
  constexpr std::size_t kBlock = 1024;  // a constant, for loops in vectors
  constexpr std::uint16_t kExponent = 0x7f80;
  const std::size_t whole = values.size() / sizeof(std::uint16_t) / kBlock * kBlock;
  std::uint64_t result = 0;
  std::array<std::uint16_t, kBlock> sums{}, block{};
  for (std::size_t at = 0; at < whole; at += kBlock) {
    std::memcpy(block.data(), values.data() + at * sizeof(std::uint16_t), sizeof(block));
    std::uint16_t special = 0;
    for (std::size_t k = 0; k < kBlock; ++k) {
      const auto exponent = static_cast<std::uint16_t>(block[k] & kExponent);
      special |= static_cast<std::uint16_t>(exponent == 0) |
                 static_cast<std::uint16_t>(exponent == kExponent);
      sums[k] ^= block[k];
    }
    for (std::size_t k = 0; special != 0 && k < kBlock; ++k) {
      const auto exponent = static_cast<std::uint16_t>(block[k] & kExponent);
      if (exponent != 0 && exponent != kExponent) continue;
      result ^= widen_normal_bf16(block[k], 1) ^ widen_small(block[k], DType::kBF16);
    }
  }
  const std::uint16_t all =
      std::accumulate(sums.begin(), sums.end(), std::uint16_t{0}, std::bit_xor<std::uint16_t>());
  return result ^ widen_normal_bf16(all, 0) ^  // the number of values is even
         xor_small<std::uint16_t>(values.subspan(whole * sizeof(std::uint16_t)), DType::kBF16);
}

// For integers, which are widened with their sign, and for float32: the processor's conversion to
// float64 is exact, keeps a NaN's payload and makes it quiet.
template <typename T>
std::uint64_t xor_wide(std::span<const std::byte> values) {
  std::uint64_t result = 0;
  for (std::size_t at = 0; at < values.size(); at += sizeof(T)) {
    T value;
    std::memcpy(&value, values.data() + at, sizeof(T));
    if constexpr (std::is_same_v<T, float>) {
      result ^= std::bit_cast<std::uint64_t>(static_cast<double>(value));
    } else {
      result ^= static_cast<std::uint64_t>(value);
    }
  }
  return result;
}

std::uint64_t xor_values(DType dtype, std::span<const std::byte> values) {
  if (dtype == DType::kF32 || dtype == DType::kC64) return xor_wide<float>(values);
  if (dtype == DType::kI32) return xor_wide<std::int32_t>(values);
  if (dtype == DType::kBF16) return xor_bf16(values);
  switch (unit_bytes(dtype)) {
    case 1: return xor_small<std::uint8_t>(values, dtype);
    case 2: return xor_small<std::uint16_t>(values, dtype);
    case 4: return xor_wide<std::uint32_t>(values);
    default: return xor_wide<std::uint64_t>(values);
  }
}

std::uint64_t xor_of_bytes(std::span<const std::byte> bytes) {
  const std::size_t whole = bytes.size() / 8 * 8;
  std::uint64_t words = xor_wide<std::uint64_t>(bytes.first(whole));
  for (const unsigned shift : {32U, 16U, 8U}) words ^= words >> shift;
  std::uint64_t result = words & 0xff;
  for (const std::byte byte : bytes.subspan(whole)) result ^= static_cast<std::uint64_t>(byte);
  return result;
}

// A part of a stream for one thread: whole units of every type.
constexpr std::uint64_t kSummedBytes = std::uint64_t{2} << 20;

std::span<const std::byte> piece_of(std::span<const std::byte> stream, std::size_t number) {
  const std::uint64_t begin = std::min<std::uint64_t>(number * kSummedBytes, stream.size());
  return stream.subspan(begin, std::min<std::uint64_t>(kSummedBytes, stream.size() - begin));
}

}  // namespace

std::string flush_checksum(const BucketView& bucket, unsigned threads) {
  const std::uint64_t bytes = std::max(bucket.values.size(), bucket.positions.size());
  std::vector<std::uint64_t> values((bytes + kSummedBytes - 1) / kSummedBytes), positions(values);
  const Status summed =
      parallel_for(values.size(), threads, [&](std::size_t i, unsigned) -> Status {
        values[i] = xor_values(bucket.dtype, piece_of(bucket.values, i));
        positions[i] = xor_of_bytes(piece_of(bucket.positions, i));
        return {};
      });
  static_cast<void>(summed);  // nothing in it fails
  const auto all = [](const std::vector<std::uint64_t>& sums) {
    return std::accumulate(sums.begin(), sums.end(), std::uint64_t{0}, std::bit_xor());
  };
  unsigned __int128 checksum = (static_cast<unsigned __int128>(all(values)) << 1) ^ all(positions);
  std::string text;
  do {
    text.insert(text.begin(), static_cast<char>('0' + static_cast<int>(checksum % 10)));
    checksum /= 10;
  } while (checksum != 0);
  return text;
}

}  // namespace driftless
