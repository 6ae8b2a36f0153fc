// SPDX-License-Identifier: Apache-2.0
// Weights that Python offers, as a WeightSource; and driftless.CheckpointSource.
#pragma once

#include <pybind11/pybind11.h>

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "module/errors.h"
#include "plugin/publish/weight_source.h"

namespace driftless::python {

// `object` has tensors() and visit(), or is a CheckpointSource. What it raises is captured by
// `failure`, which outlives the source. One that raises in tensors() offers nothing, so that the
// publisher still meets the other ranks and all of them fail together. Made and destroyed with the
// GIL; its methods are called without it.
[[nodiscard]] std::unique_ptr<WeightSource> make_source(const py::object& object,
                                                        PythonFailure& failure);

void bind_source(py::module_& module);

}  // namespace driftless::python
