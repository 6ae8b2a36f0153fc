// SPDX-License-Identifier: Apache-2.0
#include "module/errors.h"

#include <cxxabi.h>

#include <string>

namespace driftless::python {

Status PythonFailure::capture(std::string_view what) {
  try {
    throw;
  } catch (const abi::__forced_unwind&) {
    wait_for_end_of_process();
  } catch (...) {  // Python's own: below
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
