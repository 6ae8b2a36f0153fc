// roads_access.h where MPI or NCCL is in the build: in libraries that are loaded when needed.
#include "plugin/job/on_demand/loaded_library.h"
#include "plugin/job/on_demand/roads_access.h"

namespace driftless {
namespace {

Result<const RoadTable*> load(bool nccl) {
  DRIFTLESS_ASSIGN_OR_RETURN(const void* const table,
                             load_table(nccl ? kNcclRoadLibraryName : kRoadLibraryName,
                                        kRoadLibrarySymbol, nccl ? "NCCL" : "MPI"));
  return static_cast<const RoadTable*>(table);
}

// Where NCCL was not built there is no library of it, and the other one says why.
bool in_nccl_library(RoadKind road) { return DRIFTLESS_HAS_NCCL != 0 && road == RoadKind::kNccl; }

bool needs_library(const Config& config, bool launched) {
  const bool hdf5 =
      config.road == RoadKind::kSharedFs && config.publisher.layout == DirectoryLayout::kHdf5;
  return launched || hdf5 || config.road == RoadKind::kMpiRma || config.road == RoadKind::kNccl;
}

Result<const RoadTable*> load_for(const Config& config, bool launched) {
  Result<const RoadTable*> table = load(in_nccl_library(config.road));
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
  const Result<const RoadTable*> mpi = load(false);
  const Result<const RoadTable*> nccl = load(in_nccl_library(RoadKind::kNccl));
  const auto list = [](const Result<const RoadTable*>& table) {
    return table.ok() ? (*table)->backends() : backends();
  };
  std::vector<BackendState> states;
  for (std::size_t i = 0; i < backends().size(); ++i) {  // all lists have the same order
    const bool is_nccl = backends()[i].name == "nccl";
    const Result<const RoadTable*>& table = is_nccl ? nccl : mpi;
    const Backend& backend = list(table)[i];
    BackendState state{std::string(backend.name), std::string(backend.help), backend.built,
                       std::string(backend.why_not)};
    const bool in_library = is_nccl || state.name == "mpi_rma" || state.name == "shared_fs/hdf5";
    if (!table.ok() && in_library) state.why_not = table.status().message();
    states.push_back(std::move(state));
  }
  return states;
}

}  // namespace driftless
