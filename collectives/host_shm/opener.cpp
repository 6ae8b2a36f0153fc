// SPDX-License-Identifier: Apache-2.0
#include "collectives/host_shm/medium.h"

namespace driftless {
namespace host_shm {
namespace {

Result<OpenRoad> open(const RoadOptions& given, const RoadPlace& place) {
  if (place.role == JobRole::kTrainer && place.trainers > 1) {
    return error(StatusCode::kInvalidArgument, "road.kind: host_shm has one sending process, and ",
                 place.trainers, " trainers publish: use mpi_rma, nccl or shared_fs");
  }
  OpenRoad road;
  const auto& options = options_in<HostShmOptions>(given);
  road.sender = [options] { return make_host_shm_sender(options); };
  road.receiver = [options] { return make_host_shm_receiver(options); };
  return road;
}

Status publish_end(const RoadOptions& options, std::string_view text) {
  return publish_host_shm_end(options_in<HostShmOptions>(options), text);
}
Result<std::optional<std::string>> fetch_end(const RoadOptions& options) {
  return fetch_host_shm_end(options_in<HostShmOptions>(options));
}

}  // namespace
}  // namespace host_shm

constinit const RoadOpener kHostShmOpener{.open = host_shm::open,
                                          .publish_end = host_shm::publish_end,
                                          .fetch_end = host_shm::fetch_end,
                                          .examine = host_shm::examine};

}  // namespace driftless
