// roads_access.h where MPI is not in the build: all roads there are, linked into the module.
#include "module/roads_access.h"

namespace driftless::python {

Result<std::unique_ptr<JobProcess>> join_job(const Config& config, JobRole role, bool launched) {
  return JobProcess::join(config, role, launched);
}

std::vector<BackendState> backend_states() {
  std::vector<BackendState> states;
  for (const Backend& backend : backends()) {
    states.push_back({std::string(backend.name), std::string(backend.help), backend.built,
                      std::string(backend.why_not)});
  }
  return states;
}

}  // namespace driftless::python
