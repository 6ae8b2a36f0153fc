// SPDX-License-Identifier: Apache-2.0
// Statuses as Python exceptions, and Python exceptions carried through native calls.
//
// A binding function throws StatusError; what Python sees is the class of driftless.errors that
// stands for the code. A callback that raises inside a native call is kept by PythonFailure, the
// call ends with a status, and the same exception is raised again on the way out.
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

// Once Python is ending, a thread that it does not wait for gets the GIL no more: before
// Python 3.14 it is unwound by force instead, which neither a destructor nor a catch of ours
// survives. There it waits for the end of the process, as later Pythons have it.
[[noreturn]] inline void wait_for_end_of_process() {
  for (;;) ::pause();
}

// Without the GIL as long as it lives.
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

// With the GIL as long as it lives: for threads of ours, and for destructors.
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
  // Within a catch block. Returns what the native caller is told.
  [[nodiscard]] Status capture(std::string_view what);
  // Raises what was captured, once; with the GIL.
  void rethrow();
  void forget() { failure_ = nullptr; }

 private:
  std::exception_ptr failure_;
};

// Runs `work` without the GIL, then `after` with it, however `work` ended. Raises what a callback
// raised meanwhile, else what the status says.
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

// Within a catch block, with the GIL: what Python or we raised. An exception of ours keeps its
// code.
[[nodiscard]] Status caught_status();

void bind_errors(py::module_& module);

}  // namespace driftless::python
