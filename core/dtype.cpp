// SPDX-License-Identifier: Apache-2.0
#include "core/dtype.h"

#include <array>

namespace driftless {
namespace {

constexpr std::array<DTypeInfo, 22> kDTypes{{
    {DType::kBool, "BOOL", "bool", 8},
    {DType::kU8, "U8", "uint8", 8},
    {DType::kI8, "I8", "int8", 8},
    {DType::kF8E5M2, "F8_E5M2", "float8_e5m2", 8},
    {DType::kF8E4M3, "F8_E4M3", "float8_e4m3fn", 8},
    {DType::kF8E8M0, "F8_E8M0", "float8_e8m0fnu", 8},
    {DType::kI16, "I16", "int16", 16},
    {DType::kU16, "U16", "uint16", 16},
    {DType::kF16, "F16", "float16", 16},
    {DType::kBF16, "BF16", "bfloat16", 16},
    {DType::kI32, "I32", "int32", 32},
    {DType::kU32, "U32", "uint32", 32},
    {DType::kF32, "F32", "float32", 32},
    {DType::kF64, "F64", "float64", 64},
    {DType::kI64, "I64", "int64", 64},
    {DType::kU64, "U64", "uint64", 64},
    {DType::kC64, "C64", "complex64", 64},
    {DType::kF4, "F4", "float4_e2m1fn_x2", 4},
    {DType::kF6E2M3, "F6_E2M3", "float6_e2m3fn", 6},
    {DType::kF6E3M2, "F6_E3M2", "float6_e3m2fn", 6},
    {DType::kF8E4M3Fnuz, "F8_E4M3FNUZ", "float8_e4m3fnuz", 8},
    {DType::kF8E5M2Fnuz, "F8_E5M2FNUZ", "float8_e5m2fnuz", 8},
}};

Result<DType> find(std::string_view DTypeInfo::* name, std::string_view wanted,
                   std::string_view whose) {
  for (const DTypeInfo& candidate : kDTypes) {
    if (candidate.*name == wanted) return candidate.dtype;
  }
  return error(StatusCode::kUnsupported, "unknown ", whose, " dtype '", wanted, "'");
}

}  // namespace

std::span<const DTypeInfo> all_dtypes() { return kDTypes; }

const DTypeInfo& info(DType dtype) { return kDTypes[static_cast<std::size_t>(dtype)]; }

Result<DType> parse_dtype(std::string_view safetensors_name) {
  return find(&DTypeInfo::name, safetensors_name, "safetensors");
}

Result<DType> parse_torch_dtype(std::string_view torch_name) {
  return find(&DTypeInfo::torch_name, torch_name, "torch");
}

Result<DType> dtype_from_wire(std::uint8_t number) {
  if (number >= kDTypes.size()) {
    return error(StatusCode::kCorrupt, "dtype number ", number, " is not below ", kDTypes.size());
  }
  return static_cast<DType>(number);
}

unsigned unit_bytes(DType dtype) {
  const unsigned bits = info(dtype).bits;
  return bits < 8 ? 1 : bits / 8;
}

}  // namespace driftless
