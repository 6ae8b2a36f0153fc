// SPDX-License-Identifier: Apache-2.0
// What a function of the ABI is made of. The fence between the library and C: nothing but a code
// and a driftless_error leaves a function. Structs that grow at their end: the caller's may be from
// an older or a newer header.
#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "core/status.h"
#include "plugin/c_abi/driftless.h"

struct driftless_error {
  driftless_code code = DRIFTLESS_OK;
  std::string message;
};

namespace driftless::c_abi {

// Frees *error, as every call does when it begins.
void clear(driftless_error** error) noexcept;
// Its code; if it is not ok, and there is room for it, the error object.
driftless_code give(const Status& status, driftless_error** error) noexcept;
// For what was thrown: kNoSpace for a lack of memory, else kInternal.
driftless_code give_exception(driftless_error** error) noexcept;

// The body of a function of the ABI: `work` returns a Status.
template <typename Work>
driftless_code fenced(driftless_error** error, const Work& work) noexcept {
  clear(error);
  try {
    return give(work(), error);
  } catch (...) {
    return give_exception(error);
  }
}

// kInvalidArgument if it is null.
template <typename Pointer>
[[nodiscard]] Status check_not_null(Pointer pointer, const char* name) {
  if (pointer != nullptr) return {};
  return error(StatusCode::kInvalidArgument, name, " is NULL");
}
// A copy of the text that driftless_free() frees.
[[nodiscard]] Status give_text(const std::string& text, char** out);

// 0 to a year. kInvalidArgument for others.
[[nodiscard]] Result<std::chrono::milliseconds> wait_of(int64_t timeout_ms);
// The same; none for DRIFTLESS_BY_CONFIG.
[[nodiscard]] Result<std::optional<std::chrono::milliseconds>> wait_or_configured(
    int64_t timeout_ms);
[[nodiscard]] Result<std::vector<std::string>> overrides_of(const char* const* overrides,
                                                            std::size_t count);

// What the caller's struct says its size is. kInvalidArgument if that cannot be.
[[nodiscard]] Result<std::size_t> told_size(const void* at, const char* name, std::size_t least,
                                            std::size_t size);
// Raw bytes of a caller's struct, into ours of `size` bytes. `least` is the size that it had in the
// first header. kUnsupported if the caller's is larger and says something there.
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
