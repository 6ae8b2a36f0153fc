// SPDX-License-Identifier: Apache-2.0
// driftless.Config, and the list of backends.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "core/file_system.h"
#include "module/errors.h"
#include "module/job.h"
#include "plugin/job/config.h"
#include "plugin/job/roads.h"

namespace driftless::python {
namespace {

Config load(const py::object& path, const std::vector<std::string>& overrides) {
  const auto name = py::module_::import("os").attr("fspath")(path).cast<std::string>();
  return take(load_config(posix_file_system(), name, overrides));
}

Config parse(const std::string& text, const std::vector<std::string>& overrides) {
  return take(parse_config(text, "configuration", overrides));
}

py::dict settings(const Config& config) {
  py::dict result;
  for (const auto& [key, value] : effective_settings(config)) result[py::str(key)] = value;
  return result;
}

}  // namespace

void bind_config(py::module_& module) {
  py::class_<Config, std::shared_ptr<Config>>(module, "Config")
      .def_static("load", &load, py::arg("path"), py::arg("overrides") = std::vector<std::string>())
      .def_static("parse", &parse, py::arg("text"),
                  py::arg("overrides") = std::vector<std::string>())
      .def("settings", &settings);
  py::class_<Backend>(module, "Backend")
      .def_readonly("name", &Backend::name)
      .def_readonly("help", &Backend::help)
      .def_readonly("built", &Backend::built)
      .def_readonly("why_not", &Backend::why_not)
      .def("__repr__", [](const Backend& backend) {
        return concat("Backend(", backend.name, ", ",
                      backend.built ? std::string("built") : "not built: " + backend.why_not, ")");
      });
  module.def("backends", [] { return backends(); });
}

}  // namespace driftless::python
