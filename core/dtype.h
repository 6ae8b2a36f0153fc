// SPDX-License-Identifier: Apache-2.0
// The element types of safetensors, and the unit in which Driftless compares them.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "core/status.h"

namespace driftless {

// The numbers are part of the wire format (frame.h): never reorder, only append.
enum class DType : std::uint8_t {
  kBool = 0,
  kU8 = 1,
  kI8 = 2,
  kF8E5M2 = 3,
  kF8E4M3 = 4,
  kF8E8M0 = 5,
  kI16 = 6,
  kU16 = 7,
  kF16 = 8,
  kBF16 = 9,
  kI32 = 10,
  kU32 = 11,
  kF32 = 12,
  kF64 = 13,
  kI64 = 14,
  kU64 = 15,
  kC64 = 16,
  kF4 = 17,
  kF6E2M3 = 18,
  kF6E3M2 = 19,
  kF8E4M3Fnuz = 20,
  kF8E5M2Fnuz = 21,
};

struct DTypeInfo {
  DType dtype;
  std::string_view name;        // in a safetensors header: "BF16"
  std::string_view torch_name;  // torch's: "bfloat16"
  unsigned bits;                // of one element
};

// Every type, in the order of the enumeration.
[[nodiscard]] std::span<const DTypeInfo> all_dtypes();
[[nodiscard]] const DTypeInfo& info(DType dtype);
[[nodiscard]] Result<DType> parse_dtype(std::string_view safetensors_name);
[[nodiscard]] Result<DType> parse_torch_dtype(std::string_view torch_name);
// From the number on the wire; kCorrupt for one that is not in the enumeration.
[[nodiscard]] Result<DType> dtype_from_wire(std::uint8_t number);

// Positions count *units*: the element itself, or the byte for types of less than 8 bits, whose
// elements share bytes. 1, 2, 4 or 8.
[[nodiscard]] unsigned unit_bytes(DType dtype);

}  // namespace driftless
