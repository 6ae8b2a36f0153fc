// SPDX-License-Identifier: Apache-2.0
// driftless._native: the library for Python. docs/start/python.md explains its use.
//
// Every call into the library runs without the GIL; callbacks take it. Objects are used by one
// thread at a time, and refuse a second one.
#include <pybind11/pybind11.h>

#include "module/bindings.h"

PYBIND11_MODULE(_native, module) {
  using namespace driftless::python;  // NOLINT(google-build-using-namespace)
  module.attr("__version__") = DRIFTLESS_VERSION;
  bind_errors(module);
  bind_tensor_ref(module);
  bind_layout(module);
  bind_job(module);
  bind_source(module);
  bind_publisher(module);
  bind_targets(module);
  bind_engines(module);
  bind_receiver(module);
  bind_worker(module);
  bind_agent(module);
  bind_kernels(module);
  bind_engine_driver(module);
}
