// SPDX-License-Identifier: Apache-2.0
// Names of a job's processes, on the road and in paths.
#pragma once

#include <string>
#include <string_view>

#include "plugin/job/config.h"
#include "plugin/job/job_process.h"

namespace driftless {

// A rollout's name on the road: receiver.id, or one made of its place.
[[nodiscard]] std::string receiver_id(const Config& config, const JobProcess& process,
                                      unsigned rollout);
// "{role}" and "{rank}" in a path filled in.
[[nodiscard]] std::string filled_in(std::string path, std::string_view role, unsigned rank);

}  // namespace driftless
