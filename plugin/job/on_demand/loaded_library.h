// SPDX-License-Identifier: Apache-2.0
// A library of ours that is loaded when it is needed.
//
// What others load into their processes (the Python module, libdriftless.so) links neither MPI nor
// HDF5, NCCL or CUDA, so that it loads where they are missing. What needs them is in libraries that
// lie beside it, or in `driftless/` beside it.
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
