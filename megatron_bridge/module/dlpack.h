// SPDX-License-Identifier: Apache-2.0
// The structures of DLPack version 1, and of the unversioned DLPack before it.
//
// https://dmlc.github.io/dlpack/latest/c_api.html explains the fields. The layout is DLPack's, the
// names are ours, and only the structures that a capsule holds are declared.
#pragma once

#include <cstdint>

namespace driftless::python::dlpack {

inline constexpr const char* kPlainName = "dltensor";
inline constexpr const char* kPlainUsed = "used_dltensor";
inline constexpr const char* kVersionedName = "dltensor_versioned";
inline constexpr const char* kVersionedUsed = "used_dltensor_versioned";

inline constexpr std::int32_t kCpu = 1;
inline constexpr std::int32_t kCuda = 2;
inline constexpr std::int32_t kCudaHost = 3;  // pinned host memory
inline constexpr std::int32_t kCudaManaged = 13;

inline constexpr std::uint64_t kReadOnly = 1;  // a flag
inline constexpr std::uint32_t kMajor = 1;
inline constexpr std::uint32_t kMinor = 0;

struct Device {
  std::int32_t kind;
  std::int32_t number;
};

struct Type {
  std::uint8_t code;
  std::uint8_t bits;
  std::uint16_t lanes;
};

struct Tensor {
  void* data;
  Device device;
  std::int32_t dimensions;
  Type type;
  std::int64_t* shape;
  std::int64_t* strides;  // in elements; null: contiguous
  std::uint64_t byte_offset;
};

struct Plain {
  Tensor tensor;
  void* owner;
  void (*deleter)(Plain*);
};

struct Versioned {
  std::uint32_t major;
  std::uint32_t minor;
  void* owner;
  void (*deleter)(Versioned*);
  std::uint64_t flags;
  Tensor tensor;
};

#if UINTPTR_MAX == UINT64_MAX
static_assert(sizeof(Tensor) == 48 && sizeof(Plain) == 64 && sizeof(Versioned) == 80);
#endif

}  // namespace driftless::python::dlpack
