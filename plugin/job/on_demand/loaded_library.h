// SPDX-License-Identifier: Apache-2.0
// A library of ours that is loaded when it is needed.
//
// The command, the Python module and libdriftless.so link neither MPI nor HDF5 or CUDA, so that
// they start where these are missing. What needs them is in libraries that lie beside them, or in
// `driftless/` beside libdriftless.so. (NCCL is loaded by the road: collectives/nccl/nccl_calls.h.)
#pragma once

#include <string>
#include <string_view>

#include "core/status.h"

namespace driftless {

// The same in both, or they do not belong together: they share classes.
[[nodiscard]] const char* build_text();

// Of a library of roads: returns its RoadTable (plugin/job/roads.h).
inline constexpr const char* kRoadLibrarySymbol = "driftless_road_table";
// Of the library of the status server: returns its MonitorTable.
inline constexpr const char* kMonitorLibrarySymbol = "driftless_monitor_table";

// What the function that `symbol` names in the library `name` returns: a table that begins with the
// text of its build, which must be ours. `needed` is the word for what it brings along ("MPI").
// kUnsupported, with the loader's reason. A library stays loaded to the end of the process: MPI and
// CUDA cannot be unloaded.
[[nodiscard]] Result<const void*> load_table(const std::string& name, const char* symbol,
                                             std::string_view needed);

}  // namespace driftless
