// Where a library that others load gets its roads from: plugin/job/roads.h, without linking what
// the roads need (loaded_library.h).
//
// Roads that need MPI or HDF5 are in a library of their own (road_library.cpp), loaded when a job
// asks for one, or was started by mpirun; a second one has NCCL's as well, loaded when a job asks
// for that. A build that has none of them has no such library.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/status.h"
#include "plugin/job/config.h"
#include "plugin/job/roads.h"

namespace driftless {

inline constexpr const char* kRoadLibraryName = "libdriftless_roads.so";
inline constexpr const char* kNcclRoadLibraryName = "libdriftless_nccl_roads.so";
inline constexpr const char* kRoadLibrarySymbol = "driftless_road_table";

// What either offers: the functions of plugin/job/roads.h, as built there.
struct RoadTable {
  const char* build = nullptr;
  std::span<const Backend> (*backends)() = nullptr;
  Status (*check_built)(const Config& config) = nullptr;
  Result<std::unique_ptr<JobProcess>> (*join)(const Config& config, JobRole role, bool launched,
                                              const LateHandler& late) = nullptr;
};

// JobProcess::join() by the library where it is needed, else by the roads that are linked.
// kUnsupported, with the reason, where the library is needed and does not load.
[[nodiscard]] Result<std::unique_ptr<JobProcess>> join_job(const Config& config, JobRole role,
                                                           bool launched,
                                                           const LateHandler& late = {});
// Whether that will find what it needs (check_built()). Loads the library where it is needed.
[[nodiscard]] Status check_available(const Config& config, bool launched);

struct BackendState {
  std::string name, help;
  bool built = false;
  std::string why_not;
};
// Loads the libraries to know.
[[nodiscard]] std::vector<BackendState> backend_states();

}  // namespace driftless
