// SPDX-License-Identifier: Apache-2.0
#include "module/errors.h"

#include <cxxabi.h>

#include <string>

namespace driftless::python {

namespace {

StatusCode code_of(const std::string& name) {
  for (auto code = StatusCode::kInvalidArgument; code <= StatusCode::kInternal;
       code = static_cast<StatusCode>(static_cast<unsigned>(code) + 1)) {
    if (to_string(code) == name) return code;
  }
  return StatusCode::kInternal;
}

Status status_of(const py::error_already_set& raised) {
  const std::string type = py::str(raised.type().attr("__name__"));
  const std::string text = py::str(raised.value());
  StatusCode code = StatusCode::kInternal;
  if (py::hasattr(raised.value(), "code")) {
    const py::object named = raised.value().attr("code");
    if (py::isinstance<py::str>(named)) code = code_of(named.cast<std::string>());
  }
  return code == StatusCode::kInternal ? error(code, type, ": ", text) : error(code, text);
}

}  // namespace

Status caught_status() {
  try {
    throw;
  } catch (const abi::__forced_unwind&) {
    wait_for_end_of_process();
  } catch (const py::error_already_set& raised) {
    try {
      return status_of(raised);
    } catch (const std::exception&) {
      return error(StatusCode::kInternal, "an exception of Python whose text cannot be read");
    }
  } catch (const StatusError& raised) {
    return raised.status;
  } catch (const std::exception& raised) {
    return error(StatusCode::kInternal, raised.what());
  }
}

Status PythonFailure::capture(std::string_view what) {
  try {
    throw;
  } catch (const abi::__forced_unwind&) {
    wait_for_end_of_process();
  } catch (...) {  // an exception of Python, handled below
  }
  const bool first = failure_ == nullptr;
  if (first) failure_ = std::current_exception();
  try {
    throw;
  } catch (const StatusError& failure) {
    return failure.status.with_context(what);
  } catch (const std::exception& failure) {
    const std::string text = failure.what();
    return error(StatusCode::kInternal, what, ": ", text.substr(0, text.find('\n')));
  } catch (...) {
    return error(StatusCode::kInternal, what, ": an unknown exception");
  }
}

void PythonFailure::rethrow() {
  if (failure_ == nullptr) return;
  std::rethrow_exception(std::exchange(failure_, nullptr));
}

void bind_errors(py::module_& /*module*/) {
  // NOLINTNEXTLINE(performance-unnecessary-value-param): the signature is pybind11's
  py::register_local_exception_translator([](std::exception_ptr failure) {
    try {
      if (failure) std::rethrow_exception(failure);
    } catch (const StatusError& caught) {
      const std::string code(to_string(caught.status.code()));
      const std::string message(caught.status.message());
      const py::object raised =
          py::module_::import("driftless.errors").attr("error_of")(code, message);
      PyErr_SetObject(py::type::of(raised).ptr(), raised.ptr());
    }
  });
}

}  // namespace driftless::python
