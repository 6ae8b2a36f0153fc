// roads_access.h where MPI or NCCL is in the build: in a library that is loaded when it is needed.
#include "plugin/on_demand/loaded_library.h"
#include "plugin/on_demand/roads_access.h"

namespace driftless {
namespace {

Result<const RoadTable*> load() {
  DRIFTLESS_ASSIGN_OR_RETURN(const void* const table,
                             load_table(kRoadLibraryName, kRoadLibrarySymbol, "MPI"));
  return static_cast<const RoadTable*>(table);
}

bool needs_library(const Config& config, bool launched) {
  const bool hdf5 =
      config.road == RoadKind::kSharedFs && config.publisher.layout == DirectoryLayout::kHdf5;
  return launched || hdf5 || config.road == RoadKind::kMpiRma || config.road == RoadKind::kNccl;
}

Result<const RoadTable*> load_for(const Config& config, bool launched) {
  Result<const RoadTable*> table = load();
  if (table.ok()) return table;
  return table.status().with_context(
      launched ? std::string("this process was started by an MPI launcher")
               : concat("road.kind: ", to_string(config.road)));
}

}  // namespace

Result<std::unique_ptr<JobProcess>> join_job(const Config& config, JobRole role, bool launched,
                                             const LateHandler& late) {
  if (!needs_library(config, launched)) return JobProcess::join(config, role, launched, late);
  DRIFTLESS_ASSIGN_OR_RETURN(const RoadTable* const table, load_for(config, launched));
  return table->join(config, role, launched, late);
}

Status check_available(const Config& config, bool launched) {
  if (!needs_library(config, launched)) return check_built(config);
  DRIFTLESS_ASSIGN_OR_RETURN(const RoadTable* const table, load_for(config, launched));
  return table->check_built(config);
}

std::vector<BackendState> backend_states() {
  const Result<const RoadTable*> table = load();
  std::vector<BackendState> states;
  for (const Backend& backend : table.ok() ? (*table)->backends() : backends()) {
    BackendState state{std::string(backend.name), std::string(backend.help), backend.built,
                       std::string(backend.why_not)};
    const bool in_library =
        state.name == "mpi_rma" || state.name == "shared_fs/hdf5" || state.name == "nccl";
    if (!table.ok() && in_library) state.why_not = table.status().message();
    states.push_back(std::move(state));
  }
  return states;
}

}  // namespace driftless
