// SPDX-License-Identifier: Apache-2.0
// Loads a library of ours when it is needed.
//
// The command, the Python module and libdriftless.so do not link MPI, HDF5 or CUDA, so that they
// start where these are missing. Code that needs them is in libraries beside the program, or in
// `driftless/` beside libdriftless.so. (NCCL is loaded by its road:
// collectives/nccl/nccl_calls.h.)
#pragma once

#include <string>
#include <string_view>

#include "core/status.h"

namespace driftless {

// Identifies the build. It must be equal in program and library, because they share classes.
[[nodiscard]] const char* build_text();

// The symbol in a library of roads that returns its RoadTable (plugin/job/roads.h).
inline constexpr const char* kRoadLibrarySymbol = "driftless_road_table";
// The symbol in the library of the status server that returns its MonitorTable.
inline constexpr const char* kMonitorLibrarySymbol = "driftless_monitor_table";

// Loads the library `name`, calls the function `symbol` in it and returns its result: a table that
// begins with the library's build text, which must equal ours. `needed` names the library's
// dependency for messages ("MPI"). kUnsupported, with the loader's reason. A library stays loaded
// until the process ends, because MPI and CUDA cannot be unloaded.
[[nodiscard]] Result<const void*> load_table(const std::string& name, const char* symbol,
                                             std::string_view needed);

}  // namespace driftless
