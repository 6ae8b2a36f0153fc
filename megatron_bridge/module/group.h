// SPDX-License-Identifier: Apache-2.0
// A Python object as the group of publisher ranks: for jobs that no MPI launcher started.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>

#include "collectives/group.h"
#include "module/errors.h"

namespace driftless::python {

// `object` has rank, size, gather(bytes, timeout_s) and broadcast(bytes, timeout_s), and may have
// begin_epoch(number). Every message carries its epoch and number, so that ranks that fell out of
// step after a failure are told and not mixed up. Made with the GIL, used without it.
[[nodiscard]] std::unique_ptr<Group> make_group(const py::object& object, PythonFailure& failure);

}  // namespace driftless::python
