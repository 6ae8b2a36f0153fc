// SPDX-License-Identifier: Apache-2.0
#include "module/array_formats.h"

#include <algorithm>
#include <array>

namespace driftless::python {
namespace {

struct Spelling {
  DType dtype;
  std::string_view numpy;   // without the byte order; empty: numpy has none
  std::string_view format;  // of the struct module; empty: none
  int code;                 // DLPack's; -1: none
};

constexpr int kSigned = 0, kUnsigned = 1, kFloat = 2, kBrain = 4, kComplex = 5, kBoolean = 6;

constexpr std::array kSpellings = {
    Spelling{DType::kBool, "b1", "?", kBoolean}, Spelling{DType::kU8, "u1", "B", kUnsigned},
    Spelling{DType::kI8, "i1", "b", kSigned},    Spelling{DType::kI16, "i2", "h", kSigned},
    Spelling{DType::kU16, "u2", "H", kUnsigned}, Spelling{DType::kF16, "f2", "e", kFloat},
    Spelling{DType::kI32, "i4", "i", kSigned},   Spelling{DType::kU32, "u4", "I", kUnsigned},
    Spelling{DType::kF32, "f4", "f", kFloat},    Spelling{DType::kF64, "f8", "d", kFloat},
    Spelling{DType::kI64, "i8", "q", kSigned},   Spelling{DType::kU64, "u8", "Q", kUnsigned},
    Spelling{DType::kC64, "c8", "Zf", kComplex}, Spelling{DType::kBF16, "", "", kBrain},
    Spelling{DType::kF8E4M3, "", "", 10},        Spelling{DType::kF8E4M3Fnuz, "", "", 11},
    Spelling{DType::kF8E5M2, "", "", 12},        Spelling{DType::kF8E5M2Fnuz, "", "", 13},
    Spelling{DType::kF8E8M0, "", "", 14},
};

}  // namespace

Result<DType> dtype_of_typestr(std::string_view typestr, std::string_view name) {
  if (typestr.size() < 3) {
    return error(StatusCode::kInvalidArgument, "has the unknown type '", typestr, "'");
  }
  if (typestr[0] == '>') {
    return error(StatusCode::kInvalidArgument, "is big-endian ('", typestr,
                 "'): pass tensor.astype(tensor.dtype.newbyteorder('<'))");
  }
  const std::string_view kind = typestr.substr(1);
  for (const Spelling& spelling : kSpellings) {
    if (spelling.numpy == kind) return spelling.dtype;
  }
  // ml_dtypes stores an element below 8 bits in a whole byte; safetensors packs them.
  Result<DType> named = parse_torch_dtype(name);
  if (named.ok() && info(*named).bits >= 8) return named;
  return error(StatusCode::kInvalidArgument, "has dtype ", name.empty() ? typestr : name,
               ", which safetensors does not have");
}

Result<DType> dtype_of_format(std::string_view format, std::size_t item_bytes) {
  std::string_view kind = format;
  if (!kind.empty() && (kind[0] == '>' || kind[0] == '!') && item_bytes > 1) {
    return error(StatusCode::kInvalidArgument, "is big-endian (format '", format, "')");
  }
  if (!kind.empty() && std::string_view("<>=@!").find(kind[0]) != std::string_view::npos) {
    kind.remove_prefix(1);
  }
  // 'l' and 'L' have the width of the platform.
  if (kind == "l") kind = item_bytes == 8 ? "q" : "i";
  if (kind == "L") kind = item_bytes == 8 ? "Q" : "I";
  for (const Spelling& spelling : kSpellings) {
    if (!kind.empty() && spelling.format == kind && unit_bytes(spelling.dtype) == item_bytes) {
      return spelling.dtype;
    }
  }
  return error(StatusCode::kInvalidArgument, "has elements of format '", format,
               "', which safetensors does not have");
}

Result<DType> dtype_of_dlpack(const dlpack::Type& type) {
  if (type.lanes == 1) {
    for (const Spelling& spelling : kSpellings) {
      if (spelling.code == type.code && info(spelling.dtype).bits == type.bits) {
        return spelling.dtype;
      }
    }
  }
  return error(StatusCode::kInvalidArgument, "has DLPack type code ", type.code, " of ", type.bits,
               " bits and ", type.lanes, " lanes, which safetensors does not have");
}

Result<dlpack::Type> dlpack_of(DType dtype) {
  for (const Spelling& spelling : kSpellings) {
    if (spelling.dtype != dtype) continue;
    return dlpack::Type{static_cast<std::uint8_t>(spelling.code),
                        static_cast<std::uint8_t>(info(dtype).bits), 1};
  }
  return error(StatusCode::kUnsupported, "DLPack has no type ", info(dtype).name,
               "; take the bytes through the buffer protocol");
}

bool contiguous(std::span<const std::uint64_t> shape, std::span<const std::int64_t> strides,
                std::uint64_t unit) {
  if (std::find(shape.begin(), shape.end(), std::uint64_t{0}) != shape.end()) return true;
  if (strides.size() != shape.size()) return false;
  std::uint64_t expected = unit;
  for (std::size_t i = shape.size(); i-- > 0;) {
    if (shape[i] != 1 && strides[i] != static_cast<std::int64_t>(expected)) return false;
    expected *= shape[i];
  }
  return true;
}

pybind11::buffer_info buffer_of(TensorRef& ref) {
  std::string_view format;
  for (const Spelling& spelling : kSpellings) {
    if (spelling.dtype == ref.dtype) format = spelling.format;
  }
  const unsigned unit = unit_bytes(ref.dtype);
  if (format.empty()) format = unit == 2 ? "H" : "B";
  std::vector<pybind11::ssize_t> shape(ref.shape.begin(), ref.shape.end());
  if (info(ref.dtype).bits < 8) shape = {static_cast<pybind11::ssize_t>(ref.size_bytes)};
  std::vector<pybind11::ssize_t> strides(shape.size());
  pybind11::ssize_t stride = unit;
  for (std::size_t i = shape.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= shape[i];
  }
  const auto dimensions = static_cast<pybind11::ssize_t>(shape.size());
  return {ref.data,           unit,         std::string(format), dimensions, std::move(shape),
          std::move(strides), ref.read_only};
}

}  // namespace driftless::python
