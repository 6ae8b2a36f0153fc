// SPDX-License-Identifier: Apache-2.0
#include "plugin/c_abi/abi_structs.h"

#include <cstdint>

namespace driftless::c_abi {
namespace {

// No struct of ours will ever be larger: a size that was not set is not taken for one.
constexpr std::size_t kLargest = 64 << 10;

}  // namespace

Result<std::size_t> told_size(const void* at, const char* name, std::size_t least,
                              std::size_t size) {
  if (at == nullptr) return error(StatusCode::kInvalidArgument, name, " is NULL");
  std::size_t told = 0;
  std::memcpy(&told, at, sizeof(told));
  if (told >= least && told <= kLargest) return told;
  return error(StatusCode::kInvalidArgument, name, ".struct_size is ", told,
               ": set it to sizeof of the struct (", size, ")");
}

Status read_bytes(const void* from, const char* name, std::size_t least, std::size_t size,
                  void* into) {
  DRIFTLESS_ASSIGN_OR_RETURN(const std::size_t told, told_size(from, name, least, size));
  const auto* const bytes = static_cast<const unsigned char*>(from);
  for (std::size_t at = size; at < told; ++at) {
    if (bytes[at] == 0) continue;
    return error(StatusCode::kUnsupported, name, " has a setting at byte ", at,
                 " that this library does not know (its struct has ", size,
                 " bytes): use the driftless that the header came with, or leave it zero");
  }
  std::memcpy(into, from, std::min(told, size));
  return {};
}

Status write_bytes(const void* from, const char* name, std::size_t least, std::size_t size,
                   void* into) {
  DRIFTLESS_ASSIGN_OR_RETURN(const std::size_t told, told_size(into, name, least, size));
  auto* const bytes = static_cast<unsigned char*>(into);
  const std::size_t head = sizeof(std::size_t);  // struct_size stays the caller's
  const std::size_t known = std::min(told, size);
  std::memcpy(bytes + head, static_cast<const unsigned char*>(from) + head, known - head);
  std::memset(bytes + known, 0, told - known);
  return {};
}

}  // namespace driftless::c_abi
