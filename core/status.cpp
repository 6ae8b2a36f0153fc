// SPDX-License-Identifier: Apache-2.0
#include "core/status.h"

#include <cerrno>
#include <cstring>

namespace driftless {

std::string_view to_string(StatusCode code) {
  switch (code) {
    case StatusCode::kOk: return "ok";
    case StatusCode::kInvalidArgument: return "invalid_argument";
    case StatusCode::kNotFound: return "not_found";
    case StatusCode::kAlreadyExists: return "already_exists";
    case StatusCode::kIncomplete: return "incomplete";
    case StatusCode::kCorrupt: return "corrupt";
    case StatusCode::kWrongRun: return "wrong_run";
    case StatusCode::kWrongBase: return "wrong_base";
    case StatusCode::kWrongLayout: return "wrong_layout";
    case StatusCode::kMismatch: return "mismatch";
    case StatusCode::kBusy: return "busy";
    case StatusCode::kUnsupported: return "unsupported";
    case StatusCode::kNoSpace: return "no_space";
    case StatusCode::kIo: return "io";
    case StatusCode::kDeadlineExceeded: return "deadline_exceeded";
    case StatusCode::kInternal: return "internal";
  }
  return "unknown";
}

Status::Status(StatusCode code, std::string message) {
  if (code != StatusCode::kOk)
    error_ = std::make_shared<const Error>(Error{code, std::move(message)});
}

std::string_view Status::message() const {
  return ok() ? std::string_view() : std::string_view(error_->message);
}

std::string Status::to_string() const {
  return ok() ? "ok" : concat(driftless::to_string(error_->code), ": ", error_->message);
}

Status Status::with_context(std::string_view context) const {
  return ok() ? *this : Status(error_->code, concat(context, ": ", error_->message));
}

Status errno_status(int errno_value, std::string_view what) {
  StatusCode code = StatusCode::kIo;
  switch (errno_value) {
    case ENOSPC:
    case EDQUOT: code = StatusCode::kNoSpace; break;
    case ENOENT:
    case ENOTDIR: code = StatusCode::kNotFound; break;
    case EEXIST:
    case ENOTEMPTY: code = StatusCode::kAlreadyExists; break;
    default: break;
  }
  return error(code, what, ": ", std::strerror(errno_value));
}

}  // namespace driftless
