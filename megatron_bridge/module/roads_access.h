// Where the module gets its roads from.
//
// The module itself links neither MPI nor HDF5 nor NCCL, so that it can be imported where they are
// missing. Roads that need them are in a library of its own beside the module (road_library.cpp),
// loaded when a job asks for one, or was started by mpirun. A build without MPI has no such
// library.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/status.h"
#include "plugin/config.h"
#include "plugin/roads.h"

namespace driftless::python {

inline constexpr const char* kRoadLibraryName = "libdriftless_roads.so";
inline constexpr const char* kRoadLibrarySymbol = "driftless_road_table";

// What the library offers: the functions of plugin/roads.h, as built there.
struct RoadTable {
  const char* build = nullptr;  // must be that of the module: both see the same classes
  std::span<const Backend> (*backends)() = nullptr;
  Result<std::unique_ptr<JobProcess>> (*join)(const Config& config, JobRole role,
                                              bool launched) = nullptr;
};
using RoadTableFunction = const RoadTable* (*)();
// The same in both, or they do not belong together.
[[nodiscard]] const char* build_text();

// Joins the job by the library where it is needed, else by the module's own roads. kUnsupported,
// with the reason, where the library is needed and does not load.
[[nodiscard]] Result<std::unique_ptr<JobProcess>> join_job(const Config& config, JobRole role,
                                                           bool launched);

struct BackendState {
  std::string name, help;
  bool built = false;
  std::string why_not;
};
// Loads the library to know.
[[nodiscard]] std::vector<BackendState> backend_states();

}  // namespace driftless::python
