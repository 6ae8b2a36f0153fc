// SPDX-License-Identifier: Apache-2.0
// Opens the nccl road in a process of a job, however the processes find each other.
#pragma once

#include "collectives/nccl/nccl_road.h"

namespace driftless::nccl {

// How the processes find each other.
struct Meeting {
  std::function<Result<std::unique_ptr<Hub>>()> hub;
  std::function<Result<Connector>()> connector;
};

// Implements RoadOpener::usable.
[[nodiscard]] Status usable();
[[nodiscard]] OpenRoad open_road(const RoadOptions& options, const RoadPlace& place,
                                 const Meeting& meeting);

}  // namespace driftless::nccl
