// SPDX-License-Identifier: Apache-2.0
// HTTP calls of the engine drivers: one deadline for the whole call, a cap on the answer, no
// redirects, no proxy of the environment (plugin/engines/engine_http.h).
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <chrono>
#include <optional>
#include <string>

#include "module/bindings.h"
#include "module/errors.h"
#include "plugin/engines/engine_http.h"

namespace driftless::python {
namespace {

namespace py = pybind11;

// (HTTP status, body). Raises if nothing was answered in time.
py::tuple call_http(const std::string& url, const std::optional<std::string>& body,
                    double timeout_s, const std::string& token) {
  const HttpCall call{url, body.value_or(""), token, !body.has_value()};
  const auto timeout = std::chrono::milliseconds(static_cast<std::int64_t>(timeout_s * 1e3));
  HttpAnswer answer;
  {
    const py::gil_scoped_release released;
    answer = http_call(call, timeout);
  }
  check(answer.status);
  return py::make_tuple(answer.number, py::bytes(answer.body));
}

}  // namespace

void bind_http(py::module_& module) {
  module.def("http_call", &call_http, py::arg("url"), py::arg("body"), py::arg("timeout_s"),
             py::arg("token") = "");
}

}  // namespace driftless::python
