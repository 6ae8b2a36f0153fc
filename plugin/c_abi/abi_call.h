// SPDX-License-Identifier: Apache-2.0
// Helpers for the functions of the ABI. Only a code and a driftless_error leave a function: no
// exception does. Structs grow at their end: the caller's may be from an older or a newer header.
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
// Returns the status' code; if it is not ok and `error` is not null, sets the error object.
driftless_code give(const Status& status, driftless_error** error) noexcept;
// For a caught exception: kNoSpace if memory ran out, else kInternal.
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

// kInvalidArgument if the pointer is null.
template <typename Pointer>
[[nodiscard]] Status check_not_null(Pointer pointer, const char* name) {
  if (pointer != nullptr) return {};
  return error(StatusCode::kInvalidArgument, name, " is NULL");
}
// Makes a copy of the text, which driftless_free() frees.
[[nodiscard]] Status give_text(const std::string& text, char** out);

// From 0 to a year; kInvalidArgument for others.
[[nodiscard]] Result<std::chrono::milliseconds> wait_of(int64_t timeout_ms);
// As wait_of(); none for DRIFTLESS_BY_CONFIG.
[[nodiscard]] Result<std::optional<std::chrono::milliseconds>> wait_or_configured(
    int64_t timeout_ms);
[[nodiscard]] Result<std::vector<std::string>> overrides_of(const char* const* overrides,
                                                            std::size_t count);

// The size that the caller's struct declares. kInvalidArgument if it is impossible.
[[nodiscard]] Result<std::size_t> declared_size(const void* at, const char* name, std::size_t least,
                                                std::size_t size);
// Copies a caller's struct into ours of `size` bytes. `least` is the struct's size in the first
// header. kUnsupported if the caller's is larger and not zero there.
[[nodiscard]] Status read_bytes(const void* from, const char* name, std::size_t least,
                                std::size_t size, void* into);
// Copies ours into the caller's; the part of the caller's beyond ours becomes zero.
[[nodiscard]] Status write_bytes(const void* from, const char* name, std::size_t least,
                                 std::size_t size, void* into);

template <typename Struct>
[[nodiscard]] Result<Struct> read_struct(const Struct* from, const char* name,
                                         std::size_t least = sizeof(Struct)) {
  Struct read{};
  DRIFTLESS_RETURN_IF_ERROR(read_bytes(from, name, least, sizeof(Struct), &read));
  return read;
}

// Ok if the struct can be written; to be called before the work.
template <typename Struct>
[[nodiscard]] Status check_struct(const Struct* into, const char* name,
                                  std::size_t least = sizeof(Struct)) {
  return declared_size(into, name, least, sizeof(Struct)).status();
}

template <typename Struct>
[[nodiscard]] Status write_struct(const Struct& from, const char* name, Struct* into,
                                  std::size_t least = sizeof(Struct)) {
  return write_bytes(&from, name, least, sizeof(Struct), into);
}

}  // namespace driftless::c_abi
