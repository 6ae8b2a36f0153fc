// SPDX-License-Identifier: Apache-2.0
// Status and Result<T>: how every function of Driftless reports failure.
//
// No function of the library throws across its boundary or aborts the process. A function that can
// fail returns Status, or Result<T> when it also returns a value. The code names what the caller
// should do next; the message names the file, the tensor, the offset, what was expected and what
// was found. Both types are values: cheap to move, safe to share between threads once built.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace driftless {

// Each code stands for one next action.
enum class StatusCode : unsigned char {
  kOk = 0,
  kInvalidArgument,   // fix the call or the option
  kNotFound,          // check the path, or publish the version first
  kAlreadyExists,     // nothing is overwritten: choose another place, or remove what is there
  kIncomplete,        // not whole yet: wait and try again
  kCorrupt,           // damaged or malformed bytes: fetch them again
  kWrongRun,          // belongs to another run: start from that run's base, or send a full version
  kWrongBase,         // the chain does not start here: supply the missing versions or a full one
  kWrongLayout,       // other tensors, dtypes or shapes: use the matching checkpoint
  kMismatch,          // the content is not what its hash says: restore it, or send a full version
  kBusy,              // somebody else holds it: try again later
  kUnsupported,       // valid, but not possible in this encoding or this build
  kNoSpace,           // free some space, then try again
  kIo,                // the operating system refused: see the message
  kDeadlineExceeded,  // the wait ended: try again or raise the deadline
  kInternal,          // a defect of ours
};

// The code's name as it appears in messages and JSON, for example "wrong_base".
[[nodiscard]] std::string_view to_string(StatusCode code);

class [[nodiscard]] Status {
 public:
  Status() = default;  // ok
  Status(StatusCode code, std::string message);

  [[nodiscard]] bool ok() const { return error_ == nullptr; }
  [[nodiscard]] StatusCode code() const { return ok() ? StatusCode::kOk : error_->code; }
  [[nodiscard]] std::string_view message() const;
  // "wrong_base: <message>", or "ok".
  [[nodiscard]] std::string to_string() const;
  // The same code with "<context>: " before the message. An ok status stays ok.
  [[nodiscard]] Status with_context(std::string_view context) const;

 private:
  struct Error {
    StatusCode code;
    std::string message;
  };
  std::shared_ptr<const Error> error_;
};

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}  // NOLINT(google-explicit-constructor)
  Result(Status status)                          // NOLINT(google-explicit-constructor)
      : status_(status.ok() ? Status(StatusCode::kInternal, "a Result was built from an ok Status")
                            : std::move(status)) {}

  [[nodiscard]] bool ok() const { return value_.has_value(); }
  [[nodiscard]] const Status& status() const { return status_; }
  // See Status::with_context().
  [[nodiscard]] Result with_context(std::string_view context) && {
    if (ok()) return std::move(*this);
    return status_.with_context(context);
  }
  // Only when ok().
  [[nodiscard]] T& value() { return *value_; }
  [[nodiscard]] const T& value() const { return *value_; }
  T& operator*() { return *value_; }
  const T& operator*() const { return *value_; }
  T* operator->() { return &*value_; }
  const T* operator->() const { return &*value_; }

 private:
  Status status_;
  std::optional<T> value_;
};

// Joins strings and numbers into one string.
template <typename... Parts>
[[nodiscard]] std::string concat(const Parts&... parts) {
  std::string out;
  [[maybe_unused]] const auto append = [&out]<typename Part>(const Part& part) {
    if constexpr (std::is_arithmetic_v<Part> && !std::is_same_v<Part, char>) {
      out += std::to_string(part);
    } else {
      out += part;
    }
  };
  (append(parts), ...);
  return out;
}

// The way errors are made: `return error(StatusCode::kCorrupt, path, ": header of ", n, " bytes");`
template <typename... Parts>
[[nodiscard]] Status error(StatusCode code, const Parts&... parts) {
  return Status(code, concat(parts...));
}

// The status for a failed system call: kNoSpace, kNotFound, kAlreadyExists or kIo by `errno_value`.
[[nodiscard]] Status errno_status(int errno_value, std::string_view what);

}  // namespace driftless

#define DRIFTLESS_CONCAT_INNER(a, b) a##b
#define DRIFTLESS_CONCAT(a, b) DRIFTLESS_CONCAT_INNER(a, b)

// __COUNTER__, not __LINE__: a lambda in the argument may use the macro, too, on the same line.
#define DRIFTLESS_RETURN_IF_ERROR(expr) \
  DRIFTLESS_RETURN_IF_ERROR_IMPL(DRIFTLESS_CONCAT(driftless_status_, __COUNTER__), expr)

#define DRIFTLESS_RETURN_IF_ERROR_IMPL(status, expr)                      \
  do {                                                                    \
    if (::driftless::Status status = (expr); !status.ok()) return status; \
  } while (false)

#define DRIFTLESS_ASSIGN_OR_RETURN(lhs, expr) \
  DRIFTLESS_ASSIGN_OR_RETURN_IMPL(DRIFTLESS_CONCAT(driftless_result_, __COUNTER__), lhs, expr)

#define DRIFTLESS_ASSIGN_OR_RETURN_IMPL(result, lhs, expr) \
  auto result = (expr);                                    \
  if (!result.ok()) return result.status();                \
  lhs = std::move(result.value())
