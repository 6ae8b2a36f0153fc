// SPDX-License-Identifier: Apache-2.0
// The announcement of a run as a road with a fallback needs it: which run, and of which job.
#pragma once

#include "collectives/fallback/fallback_road.h"

namespace driftless {

// Implements FallbackRoads::read.
[[nodiscard]] std::optional<AnnouncedRun> read_announced(std::string_view run_info);
// Implements FallbackRoads::sign.
[[nodiscard]] std::string with_job(std::string_view run_info, std::string_view job);

}  // namespace driftless
