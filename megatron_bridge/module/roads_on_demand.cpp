// roads_access.h where MPI is in the build: in a library that is loaded when it is needed.
#include <dlfcn.h>

#include <algorithm>
#include <cstring>

#include "module/roads_access.h"

namespace driftless::python {
namespace {

// Beside the module, wherever that was installed.
Result<std::string> library_path() {
  Dl_info found{};
  if (dladdr(reinterpret_cast<void*>(&join_job), &found) == 0 || found.dli_fname == nullptr) {
    return error(StatusCode::kInternal, "the module's own file is not known");
  }
  const std::string module = found.dli_fname;
  return module.substr(0, module.rfind('/') + 1) + kRoadLibraryName;
}

// Stays loaded to the end of the process: MPI cannot be unloaded.
Result<const RoadTable*> load() {
  DRIFTLESS_ASSIGN_OR_RETURN(const std::string path, library_path());
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const why = dlerror();  // NOLINT(concurrency-mt-unsafe)
    return error(StatusCode::kUnsupported,
                 "MPI is needed and cannot be loaded: ", why == nullptr ? path : why,
                 "; install the MPI that driftless was built with");
  }
  const auto table = reinterpret_cast<RoadTableFunction>(dlsym(library, kRoadLibrarySymbol));
  if (table == nullptr || std::strcmp(table()->build, build_text()) != 0) {
    return error(StatusCode::kUnsupported, path, " belongs to another build of driftless (",
                 table == nullptr ? "unknown" : table()->build, ", the module is ", build_text(),
                 "): install the package again");
  }
  return table();
}

bool needs_library(const Config& config, bool launched) {
  const bool hdf5 =
      config.road == RoadKind::kSharedFs && config.publisher.layout == DirectoryLayout::kHdf5;
  return launched || hdf5 || config.road == RoadKind::kMpiRma || config.road == RoadKind::kNccl;
}

}  // namespace

Result<std::unique_ptr<JobProcess>> join_job(const Config& config, JobRole role, bool launched) {
  if (!needs_library(config, launched)) return JobProcess::join(config, role, launched);
  const Result<const RoadTable*> table = load();
  if (table.ok()) return (*table)->join(config, role, launched);
  return table.status().with_context(
      launched ? std::string("this process was started by an MPI launcher")
               : concat("road.kind: ", to_string(config.road)));
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

}  // namespace driftless::python
