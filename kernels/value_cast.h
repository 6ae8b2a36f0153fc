// SPDX-License-Identifier: Apache-2.0
// Conversions between floating-point types on their bits, as torch's copy_() makes them between
// tensors of two types. Widening keeps every value, including NaN payloads (a signalling NaN of
// float16 becomes quiet, as on processors). Narrowing rounds to nearest, ties to even; a NaN
// becomes the type's quiet NaN, in float16 with its sign. For NaNs, except from bfloat16 to
// float32, torch's result depends on the processor and on the tensor's strides: a caller that needs
// the bits that torch wrote must read them (HostKernels::diff_cast()).
#pragma once

#include <cstdint>
#include <optional>
#include <type_traits>

#include "core/dtype.h"

namespace driftless {

enum class ValueCast : std::uint8_t {
  kNone,  // the same bits
  kBF16ToF32,
  kF16ToF32,
  kF32ToBF16,
  kF32ToF16,
  kBF16ToF16,
  kF16ToBF16,
};

// Empty if there is no such conversion.
[[nodiscard]] constexpr std::optional<ValueCast> value_cast(DType from, DType to) {
  if (from == to) return ValueCast::kNone;
  if (from == DType::kBF16 && to == DType::kF32) return ValueCast::kBF16ToF32;
  if (from == DType::kF16 && to == DType::kF32) return ValueCast::kF16ToF32;
  if (from == DType::kF32 && to == DType::kBF16) return ValueCast::kF32ToBF16;
  if (from == DType::kF32 && to == DType::kF16) return ValueCast::kF32ToF16;
  if (from == DType::kBF16 && to == DType::kF16) return ValueCast::kBF16ToF16;
  if (from == DType::kF16 && to == DType::kBF16) return ValueCast::kF16ToBF16;
  return std::nullopt;
}

[[nodiscard]] constexpr std::uint32_t f32_of_bf16(std::uint16_t bits) {
  return std::uint32_t{bits} << 16;
}

[[nodiscard]] constexpr std::uint32_t f32_of_f16(std::uint16_t bits) {
  const std::uint32_t sign = (bits & 0x8000U) << 16;
  const std::uint32_t exponent = (bits >> 10) & 0x1fU;
  std::uint32_t fraction = bits & 0x3ffU;
  if (exponent == 0x1f) {
    return sign | 0x7f800000U | (fraction << 13) | (fraction != 0 ? 0x400000U : 0U);
  }
  if (exponent != 0) return sign | ((exponent + 112) << 23) | (fraction << 13);
  if (fraction == 0) return sign;
  std::uint32_t shift = 0;  // a denormal: its first set bit becomes the hidden one
  while ((fraction & 0x400U) == 0) {
    fraction <<= 1;
    ++shift;
  }
  return sign | ((113 - shift) << 23) | ((fraction & 0x3ffU) << 13);
}

[[nodiscard]] constexpr bool is_nan_f32(std::uint32_t bits) {
  return (bits & 0x7fffffffU) > 0x7f800000U;
}
// Whether the bits are a NaN of bfloat16 or float16.
[[nodiscard]] constexpr bool is_nan_16(DType dtype, std::uint16_t bits) {
  return (bits & 0x7fffU) > (dtype == DType::kBF16 ? 0x7f80U : 0x7c00U);
}

[[nodiscard]] constexpr std::uint16_t bf16_of_f32(std::uint32_t bits) {
  if (is_nan_f32(bits)) return 0x7fc0U;
  return static_cast<std::uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
}

[[nodiscard]] constexpr std::uint16_t f16_of_f32(std::uint32_t bits) {
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000U);
  const std::uint32_t size = bits & 0x7fffffffU;
  if (size > 0x7f800000U) return sign | 0x7e00U;
  if (size >= 0x477ff000U) return sign | 0x7c00U;  // rounds to 65536 or more
  std::uint32_t kept = 0, rest = 0, half = 0;
  if (size >= 0x38800000U) {  // a normal float16
    kept = (size - 0x38000000U) >> 13;
    rest = size & 0x1fffU;
    half = 0x1000U;
  } else {
    const std::uint32_t shift = 126 - (size >> 23);
    if (shift > 24) return sign;
    const std::uint32_t fraction = (size & 0x7fffffU) | 0x800000U;
    kept = fraction >> shift;
    rest = fraction & ((1U << shift) - 1);
    half = 1U << (shift - 1);
  }
  if (rest > half || (rest == half && (kept & 1U) != 0)) ++kept;
  return static_cast<std::uint16_t>(sign | kept);
}

// Whether the input can be computed from the output: true for widening. (For a signalling NaN of
// float16 the result is the quiet one.)
[[nodiscard]] constexpr bool reversible(ValueCast cast) {
  return cast == ValueCast::kNone || cast == ValueCast::kBF16ToF32 || cast == ValueCast::kF16ToF32;
}

[[nodiscard]] constexpr std::uint16_t f16_of_bf16(std::uint16_t bits) {
  return f16_of_f32(f32_of_bf16(bits));
}

[[nodiscard]] constexpr std::uint16_t bf16_of_f16(std::uint16_t bits) {
  return bf16_of_f32(f32_of_f16(bits));
}

template <typename Bits>
[[nodiscard]] constexpr Bits same_bits(Bits bits) {
  return bits;
}

// A conversion as two types and a function.
template <typename FromBits, typename ToBits, ToBits (*kApply)(FromBits)>
struct CastBy {
  using From = FromBits;
  using To = ToBits;
  static constexpr To apply(From bits) { return kApply(bits); }
};

template <typename Bits>
using SameBits = CastBy<Bits, Bits, same_bits<Bits>>;
using BF16ToF32 = CastBy<std::uint16_t, std::uint32_t, f32_of_bf16>;
using F16ToF32 = CastBy<std::uint16_t, std::uint32_t, f32_of_f16>;

// The input from which a reversible conversion made `bits`; false if no input gives them.
template <typename Cast>
[[nodiscard]] constexpr bool undo_cast(typename Cast::To bits, typename Cast::From& value) {
  if constexpr (std::is_same_v<Cast, BF16ToF32>) {
    value = static_cast<std::uint16_t>(bits >> 16);
    return (bits & 0xffffU) == 0;
  } else if constexpr (std::is_same_v<Cast, F16ToF32>) {
    const bool nan = (bits & 0x7fffffffU) > 0x7f800000U;
    value =
        nan ? static_cast<std::uint16_t>((bits >> 16 & 0x8000U) | 0x7c00U | (bits >> 13 & 0x3ffU))
            : f16_of_f32(bits);
    return f32_of_f16(value) == bits;
  } else {
    value = static_cast<typename Cast::From>(bits);
    return true;
  }
}

// Calls use(Cast{}) with the conversion's types, for outputs of `to_bytes`.
template <typename Use>
constexpr auto with_cast(ValueCast cast, unsigned to_bytes, Use&& use) {
  using U16 = std::uint16_t;
  using U32 = std::uint32_t;
  switch (cast) {
    case ValueCast::kBF16ToF32: return use(BF16ToF32{});
    case ValueCast::kF16ToF32: return use(F16ToF32{});
    case ValueCast::kF32ToBF16: return use(CastBy<U32, U16, bf16_of_f32>{});
    case ValueCast::kF32ToF16: return use(CastBy<U32, U16, f16_of_f32>{});
    case ValueCast::kBF16ToF16: return use(CastBy<U16, U16, f16_of_bf16>{});
    case ValueCast::kF16ToBF16: return use(CastBy<U16, U16, bf16_of_f16>{});
    case ValueCast::kNone: break;
  }
  switch (to_bytes) {
    case 1: return use(SameBits<std::uint8_t>{});
    case 2: return use(SameBits<U16>{});
    case 4: return use(SameBits<U32>{});
    default: return use(SameBits<std::uint64_t>{});
  }
}

// The width in bytes of the inputs, if outputs have `to_bytes`.
[[nodiscard]] constexpr unsigned source_bytes(ValueCast cast, unsigned to_bytes) {
  return with_cast(cast, to_bytes, [](auto conversion) {
    return static_cast<unsigned>(sizeof(typename decltype(conversion)::From));
  });
}

}  // namespace driftless
