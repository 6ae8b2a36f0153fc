// roads_access.h where neither MPI nor NCCL is in the build: all roads there are, linked.
#include "plugin/job/on_demand/roads_access.h"

namespace driftless {

Result<std::unique_ptr<JobProcess>> join_job(const Config& config, JobRole role, bool launched,
                                             const LateHandler& late) {
  return JobProcess::join(config, role, launched, late);
}

Status check_available(const Config& config, bool) { return check_built(config); }

std::vector<BackendState> backend_states() {
  std::vector<BackendState> states;
  for (const Backend& backend : backends()) {
    states.push_back({std::string(backend.name), std::string(backend.help), backend.built,
                      std::string(backend.why_not)});
  }
  return states;
}

}  // namespace driftless
