// SPDX-License-Identifier: Apache-2.0
// The nccl road put together for a process of a job, however the processes meet.
#pragma once

#include <functional>

#include "collectives/nccl/nccl_road.h"
#include "collectives/nccl/rendezvous.h"
#include "plugin/job/roads.h"

namespace driftless {

// How the processes find each other.
struct NcclMeeting {
  std::function<Result<std::unique_ptr<nccl::Hub>>()> hub;
  std::function<Result<std::unique_ptr<nccl::Connector>>()> connector;
};

// Hashes are computed on the device.
[[nodiscard]] OpenRoad nccl_road(const NcclOptions& options, const RoadPlace& place,
                                 const NcclMeeting& meeting);

}  // namespace driftless
