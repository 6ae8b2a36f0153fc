// SPDX-License-Identifier: Apache-2.0

#include "kernels/device_hash.h"
#include "plugin/job/road_openers.h"

namespace driftless {
namespace {

Result<std::unique_ptr<SendRoad>> make_nccl_sender(const NcclOptions& options,
                                                   const RoadPlace& place,
                                                   const NcclMeeting& meeting) {
  DRIFTLESS_ASSIGN_OR_RETURN(std::shared_ptr<nccl::Fabric> fabric, make_nccl_fabric(options));
  if (place.rank == 0) {
    DRIFTLESS_ASSIGN_OR_RETURN(std::unique_ptr<nccl::Hub> hub, meeting.hub());
    return nccl::make_leading_sender(options, place.trainers, std::move(fabric), std::move(hub));
  }
  DRIFTLESS_ASSIGN_OR_RETURN(nccl::Connector connector, meeting.connector());
  return nccl::make_other_sender(options, place.rank, place.trainers, std::move(fabric),
                                 std::move(connector));
}

Result<std::unique_ptr<ReceiveRoad>> make_nccl_receiver(const NcclOptions& options,
                                                        const NcclMeeting& meeting) {
  DRIFTLESS_ASSIGN_OR_RETURN(std::shared_ptr<nccl::Fabric> fabric, make_nccl_fabric(options));
  DRIFTLESS_ASSIGN_OR_RETURN(nccl::Connector connector, meeting.connector());
  return nccl::make_receiver(options, std::move(fabric), std::move(connector));
}

}  // namespace

OpenRoad nccl_road(const NcclOptions& given, const RoadPlace& place, const NcclMeeting& meeting) {
  NcclOptions options = given;
  options.hash = device_xxh3_128;
  if (options.receivers == 0 && place.mpi != nullptr) options.receivers = place.rollouts;
  OpenRoad road;
  road.sender = [options, place, meeting] { return make_nccl_sender(options, place, meeting); };
  road.receiver = [options, meeting] { return make_nccl_receiver(options, meeting); };
  return road;
}

Result<OpenRoad> open_nccl_road(const Config& config, const RoadPlace& place) {
  const RendezvousOptions& options = config.rendezvous;
  return nccl_road(config.nccl, place,
                   {[options] { return nccl::make_file_hub(options); },
                    [options] { return nccl::make_file_connector(options); }});
}

}  // namespace driftless
