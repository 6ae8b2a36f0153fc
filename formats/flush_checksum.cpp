// SPDX-License-Identifier: Apache-2.0
// flush_checksum(): the checksum in flush files.
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <string>
#include <type_traits>

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

}  // namespace

std::string flush_checksum(const BucketView& bucket) {
  const std::uint64_t values = xor_values(bucket.dtype, bucket.values);
  unsigned __int128 checksum =
      (static_cast<unsigned __int128>(values) << 1) ^ xor_of_bytes(bucket.positions);
  std::string text;
  do {
    text.insert(text.begin(), static_cast<char>('0' + static_cast<int>(checksum % 10)));
    checksum /= 10;
  } while (checksum != 0);
  return text;
}

}  // namespace driftless
