// SPDX-License-Identifier: Apache-2.0
// driftless.TensorSpec and driftless.Layout.
#pragma once

#include <pybind11/pybind11.h>

#include <vector>

#include "core/layout.h"

namespace driftless::python {

void bind_layout(pybind11::module_& module);

}  // namespace driftless::python
