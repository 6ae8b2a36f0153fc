// SPDX-License-Identifier: Apache-2.0
// An object store that Python implements (driftless.object_stores.ObjectStore), for the road
// object_store. Its methods are called from any thread, with the GIL. FileNotFoundError becomes
// kNotFound, FileExistsError kAlreadyExists, NotImplementedError kUnsupported, ValueError,
// TypeError and PermissionError kInvalidArgument. After any other exception the call is retried
// until the deadline.
#pragma once

#include <pybind11/pybind11.h>

#include "collectives/object_store/object_store.h"

namespace driftless::python {

// Needs the GIL. Uploads of several pieces are collected in `spool_dir` (empty: TMPDIR, or /tmp).
[[nodiscard]] std::shared_ptr<ObjectStore> make_python_store(pybind11::object store,
                                                             std::string spool_dir);

}  // namespace driftless::python
