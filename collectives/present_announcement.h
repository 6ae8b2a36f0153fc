// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "collectives/road.h"

namespace driftless {

// The announcement that a road already has; nothing if it has none, because this does not wait for
// one. If the road does not answer, it is asked again until the deadline; then returns the failure.
// A failure that comes at once is an answer, and is returned.
[[nodiscard]] Result<std::optional<std::string>> present_announcement(ReceiveRoad& history,
                                                                      const Deadline& deadline);

}  // namespace driftless
