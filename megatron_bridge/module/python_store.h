// SPDX-License-Identifier: Apache-2.0
// A store of objects that Python implements (driftless.object_stores.ObjectStore), for the
// object_store road. Its calls may come from any thread, each with the GIL; FileNotFoundError is
// kNotFound, FileExistsError kAlreadyExists, NotImplementedError kUnsupported, ValueError and
// PermissionError kInvalidArgument. Anything else may pass, and is tried again until the deadline.
#pragma once

#include <pybind11/pybind11.h>

#include "collectives/object_store/object_store.h"

namespace driftless::python {

// With the GIL. Uploads of several pieces lie in `spool_dir` (empty: TMPDIR, or /tmp) meanwhile.
[[nodiscard]] std::shared_ptr<ObjectStore> make_python_store(pybind11::object store,
                                                             std::string spool_dir);

}  // namespace driftless::python
