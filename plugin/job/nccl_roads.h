// The nccl road put together for a process of a job. Included by roads.cpp only; built where NCCL
// is.
#pragma once

#include <functional>
#include <memory>

#include "collectives/nccl/nccl_road.h"
#include "collectives/nccl/rendezvous.h"
#include "collectives/road.h"

namespace driftless {

// How the processes find each other.
struct NcclMeeting {
  std::function<Result<std::unique_ptr<nccl::Hub>>()> hub;
  std::function<Result<std::unique_ptr<nccl::Connector>>()> connector;
};

// Hashes are computed on the device.
[[nodiscard]] Result<std::unique_ptr<SendRoad>> make_nccl_sender(NcclOptions options, unsigned rank,
                                                                 unsigned ranks,
                                                                 const NcclMeeting& meeting);
[[nodiscard]] Result<std::unique_ptr<ReceiveRoad>> make_nccl_receiver(NcclOptions options,
                                                                      const NcclMeeting& meeting);

}  // namespace driftless
