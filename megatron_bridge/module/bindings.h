// SPDX-License-Identifier: Apache-2.0
// The parts of the module; each adds its classes and functions.
#pragma once

#include <pybind11/pybind11.h>

namespace driftless::python {

void bind_publisher(pybind11::module_& module);
void bind_targets(pybind11::module_& module);
void bind_module_target(pybind11::module_& module);
void bind_masked(pybind11::module_& module);
void bind_receiver(pybind11::module_& module);
void bind_kernels(pybind11::module_& module);
void bind_http(pybind11::module_& module);
void bind_engine_driver(pybind11::module_& module);

}  // namespace driftless::python
