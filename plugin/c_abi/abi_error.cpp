// SPDX-License-Identifier: Apache-2.0
#include "plugin/c_abi/abi_error.h"

#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>

namespace driftless::c_abi {
namespace {

static_assert(static_cast<int>(StatusCode::kInvalidArgument) == DRIFTLESS_INVALID_ARGUMENT);
static_assert(static_cast<int>(StatusCode::kCorrupt) == DRIFTLESS_CORRUPT);
static_assert(static_cast<int>(StatusCode::kMismatch) == DRIFTLESS_MISMATCH);
static_assert(static_cast<int>(StatusCode::kBusy) == DRIFTLESS_BUSY);
static_assert(static_cast<int>(StatusCode::kInternal) == DRIFTLESS_INTERNAL);

driftless_code give(driftless_code code, const char* message, driftless_error** error) noexcept {
  if (error == nullptr) return code;
  try {
    *error = new driftless_error{code, message};
  } catch (...) {
    *error = nullptr;  // no memory even for that: the code is all there is
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
  // A message ends with NUL because Status keeps it in a std::string.
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
    return give(DRIFTLESS_INTERNAL, "an exception that says nothing", error);
  }
}

Status give_text(const std::string& text, char** out) {
  char* const copy = static_cast<char*>(std::malloc(text.size() + 1));
  if (copy == nullptr) return error(StatusCode::kNoSpace, "no memory for a text");
  std::memcpy(copy, text.c_str(), text.size() + 1);
  *out = copy;
  return {};
}

}  // namespace driftless::c_abi
