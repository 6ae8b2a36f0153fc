// SPDX-License-Identifier: Apache-2.0
// What Python gives a publisher: weights as a WeightSource, an object as the group of its ranks;
// and driftless.CheckpointSource.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>

#include "collectives/group.h"
#include "module/errors.h"
#include "plugin/publish/weight_source.h"

namespace driftless::python {

// `object` has tensors() and visit(), perhaps boxes() (of each tensor what is offered: None for all
// of it, or (offsets, sizes)), or is a CheckpointSource. What it raises is captured by
// `failure`, which outlives the source. One that raises in tensors() offers nothing, so that the
// publisher still meets the other ranks and all of them fail together. Made and destroyed with the
// GIL; its methods are called without it.
[[nodiscard]] std::shared_ptr<WeightSource> make_source(const py::object& object,
                                                        PythonFailure& failure);

// The group of publisher ranks in a job that no MPI launcher started. `object` has rank, size,
// gather(bytes, timeout_s) and broadcast(bytes, timeout_s), and may have begin_epoch(number). Every
// message carries its epoch and number, so that ranks that fell out of step after a failure are
// told and not mixed up. Made with the GIL, used without it.
[[nodiscard]] std::unique_ptr<Group> make_group(const py::object& object, PythonFailure& failure);

}  // namespace driftless::python
