// SPDX-License-Identifier: Apache-2.0
#include "plugin/c_abi/abi_call.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>

#include "core/setting_values.h"

namespace driftless::c_abi {
namespace {

static_assert(static_cast<int>(StatusCode::kInvalidArgument) == DRIFTLESS_INVALID_ARGUMENT);
static_assert(static_cast<int>(StatusCode::kCorrupt) == DRIFTLESS_CORRUPT);
static_assert(static_cast<int>(StatusCode::kMismatch) == DRIFTLESS_MISMATCH);
static_assert(static_cast<int>(StatusCode::kBusy) == DRIFTLESS_BUSY);
static_assert(static_cast<int>(StatusCode::kInternal) == DRIFTLESS_INTERNAL);

// Our structs will never be larger, so an uninitialized size is detected.
constexpr std::size_t kLargest = 64 << 10;

driftless_code give(driftless_code code, const char* message, driftless_error** error) noexcept {
  if (error == nullptr) return code;
  try {
    *error = new driftless_error{code, message};
  } catch (...) {
    *error = nullptr;  // no memory for the error: only the code is returned
  }
  return code;
}

}  // namespace

void clear(driftless_error** error) noexcept {
  if (error == nullptr) return;
  delete *error;
  *error = nullptr;
}

driftless_code give(const Status& status, driftless_error** error) noexcept {
  if (status.ok()) return DRIFTLESS_OK;
  // The message is NUL-terminated, because Status keeps it in a std::string.
  return give(static_cast<driftless_code>(status.code()), status.message().data(), error);
}

driftless_code give_exception(driftless_error** error) noexcept {
  try {
    throw;
  } catch (const std::bad_alloc&) {
    return give(DRIFTLESS_NO_SPACE, "no memory", error);
  } catch (const std::exception& thrown) {
    return give(DRIFTLESS_INTERNAL, thrown.what(), error);
  } catch (...) {
    return give(DRIFTLESS_INTERNAL, "an exception without a message", error);
  }
}

Status give_text(const std::string& text, char** out) {
  DRIFTLESS_RETURN_IF_ERROR(check_not_null(out, "text"));
  char* const copy = static_cast<char*>(std::malloc(text.size() + 1));
  if (copy == nullptr) return error(StatusCode::kNoSpace, "no memory for a text");
  std::memcpy(copy, text.c_str(), text.size() + 1);
  *out = copy;
  return {};
}

Result<std::chrono::milliseconds> wait_of(int64_t timeout_ms) {
  if (timeout_ms >= 0 && timeout_ms <= kMaxDuration.count())
    return std::chrono::milliseconds(timeout_ms);
  return error(StatusCode::kInvalidArgument, "timeout_ms is ", timeout_ms, ": expected 0 to ",
               kMaxDuration.count());
}

Result<std::optional<std::chrono::milliseconds>> wait_or_configured(int64_t timeout_ms) {
  if (timeout_ms == DRIFTLESS_BY_CONFIG) return std::optional<std::chrono::milliseconds>();
  DRIFTLESS_ASSIGN_OR_RETURN(const std::chrono::milliseconds wait, wait_of(timeout_ms));
  return std::optional<std::chrono::milliseconds>(wait);
}

Result<std::vector<std::string>> overrides_of(const char* const* overrides, std::size_t count) {
  if (count > 0) DRIFTLESS_RETURN_IF_ERROR(check_not_null(overrides, "overrides"));
  std::vector<std::string> texts;
  for (std::size_t i = 0; i < count; ++i) {
    DRIFTLESS_RETURN_IF_ERROR(check_not_null(overrides[i], concat("overrides[", i, "]").c_str()));
    texts.emplace_back(overrides[i]);
  }
  return texts;
}

Result<std::size_t> declared_size(const void* at, const char* name, std::size_t least,
                                  std::size_t size) {
  DRIFTLESS_RETURN_IF_ERROR(check_not_null(at, name));
  std::size_t declared = 0;
  std::memcpy(&declared, at, sizeof(declared));
  if (declared >= least && declared <= kLargest) return declared;
  return error(StatusCode::kInvalidArgument, name, ".struct_size is ", declared,
               ": set it to sizeof of the struct (", size, ")");
}

Status read_bytes(const void* from, const char* name, std::size_t least, std::size_t size,
                  void* into) {
  DRIFTLESS_ASSIGN_OR_RETURN(const std::size_t declared, declared_size(from, name, least, size));
  const auto* const bytes = static_cast<const unsigned char*>(from);
  for (std::size_t at = size; at < declared; ++at) {
    if (bytes[at] == 0) continue;
    return error(StatusCode::kUnsupported, name, " has a setting at byte ", at,
                 " that this library does not know (its struct has ", size,
                 " bytes): use the driftless that the header came with, or leave it zero");
  }
  std::memcpy(into, from, std::min(declared, size));
  return {};
}

Status write_bytes(const void* from, const char* name, std::size_t least, std::size_t size,
                   void* into) {
  DRIFTLESS_ASSIGN_OR_RETURN(const std::size_t declared, declared_size(into, name, least, size));
  auto* const bytes = static_cast<unsigned char*>(into);
  const std::size_t head = sizeof(std::size_t);  // keep the caller's struct_size
  const std::size_t known = std::min(declared, size);
  std::memcpy(bytes + head, static_cast<const unsigned char*>(from) + head, known - head);
  std::memset(bytes + known, 0, declared - known);
  return {};
}

}  // namespace driftless::c_abi
