// SPDX-License-Identifier: Apache-2.0
// Statuses as Python exceptions, and Python exceptions carried through native calls.
//
// A binding function throws StatusError, and Python gets the class of driftless.errors for its
// code. If a callback raises inside a native call, PythonFailure keeps the exception, the call ends
// with a status, and the binding function raises the same exception again.
#pragma once

#include <pybind11/pybind11.h>
#include <unistd.h>

#include <exception>
#include <optional>
#include <string_view>
#include <utility>

#include "core/status.h"

namespace driftless::python {

namespace py = pybind11;

struct StatusError : std::exception {
  explicit StatusError(Status why) : status(std::move(why)) {}
  Status status;
};

template <typename... Parts>
[[noreturn]] void fail(StatusCode code, const Parts&... parts) {
  throw StatusError(error(code, parts...));
}
inline void check(Status status) {
  if (!status.ok()) throw StatusError(std::move(status));
}
inline void take(Status status) { check(std::move(status)); }
template <typename T>
[[nodiscard]] T take(Result<T> result) {
  if (!result.ok()) throw StatusError(result.status());
  return std::move(result.value());
}

// While Python exits, a daemon thread that requests the GIL never gets it. Before Python 3.14 the
// thread is unwound by force, which would end the process in a destructor or a catch clause. Such a
// thread waits here for the end of the process, as Python 3.14 makes it do.
[[noreturn]] inline void wait_for_end_of_process() {
  for (;;) ::pause();
}

// Releases the GIL as long as this object lives.
class GilReleased {
 public:
  GilReleased() : thread_(PyEval_SaveThread()) {}
  GilReleased(const GilReleased&) = delete;
  GilReleased& operator=(const GilReleased&) = delete;
  ~GilReleased() {
    try {
      PyEval_RestoreThread(thread_);
    } catch (...) {
      wait_for_end_of_process();
    }
  }

 private:
  PyThreadState* thread_;
};

// Holds the GIL as long as this object lives: for our own threads, and for destructors.
class GilTaken {
 public:
  GilTaken() {
    try {
      taken_.emplace();
    } catch (...) {
      wait_for_end_of_process();
    }
  }

 private:
  std::optional<py::gil_scoped_acquire> taken_;
};

template <typename Work>
auto without_gil(Work&& work) {
  const GilReleased released;
  return work();
}

// The first exception that a callback raised. Used by one native call at a time; capture() needs
// the GIL.
class PythonFailure {
 public:
  // Call it in a catch block. Returns the status for the native caller.
  [[nodiscard]] Status capture(std::string_view what);
  // Raises the captured exception, once. Needs the GIL.
  void rethrow();
  void forget() { failure_ = nullptr; }

 private:
  std::exception_ptr failure_;
};

// Runs `work` without the GIL, then `after` with the GIL, even if `work` failed. If it failed,
// raises the exception of a callback if there was one, otherwise the exception of the status.
template <typename Work, typename After>
auto native_call(PythonFailure& failure, Work&& work, After&& after) {
  auto result = without_gil(work);
  after();
  if (result.ok()) {
    failure.forget();
  } else {
    failure.rethrow();
  }
  return take(std::move(result));
}

// Call it in a catch block, with the GIL. Returns the exception as a status; a driftless.Error
// keeps its code.
[[nodiscard]] Status caught_status();

void bind_errors(py::module_& module);

}  // namespace driftless::python
