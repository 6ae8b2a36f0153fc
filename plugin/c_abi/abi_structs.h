// SPDX-License-Identifier: Apache-2.0
// Structs that grow at their end: the caller's may be from an older or a newer header.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "core/status.h"

namespace driftless::c_abi {

// What the caller's struct says its size is. kInvalidArgument where that cannot be.
[[nodiscard]] Result<std::size_t> told_size(const void* at, const char* name, std::size_t least,
                                            std::size_t size);
// Raw bytes of a caller's struct, into ours of `size` bytes. `least` is the size that it had in the
// first header. kUnsupported where the caller's is larger and says something there.
[[nodiscard]] Status read_bytes(const void* from, const char* name, std::size_t least,
                                std::size_t size, void* into);
// And back; what the caller's has beyond ours becomes zero.
[[nodiscard]] Status write_bytes(const void* from, const char* name, std::size_t least,
                                 std::size_t size, void* into);

template <typename Struct>
[[nodiscard]] Result<Struct> read_struct(const Struct* from, const char* name,
                                         std::size_t least = sizeof(Struct)) {
  Struct read{};
  DRIFTLESS_RETURN_IF_ERROR(read_bytes(from, name, least, sizeof(Struct), &read));
  return read;
}

// Whether it can be written: to be asked before anything happens.
template <typename Struct>
[[nodiscard]] Status check_struct(const Struct* into, const char* name,
                                  std::size_t least = sizeof(Struct)) {
  return told_size(into, name, least, sizeof(Struct)).status();
}

template <typename Struct>
[[nodiscard]] Status write_struct(const Struct& from, const char* name, Struct* into,
                                  std::size_t least = sizeof(Struct)) {
  return write_bytes(&from, name, least, sizeof(Struct), into);
}

}  // namespace driftless::c_abi
