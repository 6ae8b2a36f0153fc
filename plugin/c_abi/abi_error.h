// SPDX-License-Identifier: Apache-2.0
// driftless_error, and the fence between the library and C: nothing but a code leaves a function.
#pragma once

#include <string>

#include "core/status.h"
#include "plugin/c_abi/driftless.h"

struct driftless_error {
  driftless_code code = DRIFTLESS_OK;
  std::string message;
};

namespace driftless::c_abi {

// Frees *error, as every call does when it begins.
void clear(driftless_error** error) noexcept;
// Its code; where it is not ok, and there is room for it, the error object.
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

// kInvalidArgument where it is null.
template <typename Pointer>
[[nodiscard]] Status check_not_null(Pointer pointer, const char* name) {
  if (pointer != nullptr) return {};
  return error(StatusCode::kInvalidArgument, name, " is NULL");
}
// A copy of the text that driftless_free() frees.
[[nodiscard]] Status give_text(const std::string& text, char** out);

}  // namespace driftless::c_abi
