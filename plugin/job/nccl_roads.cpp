#include "plugin/job/nccl_roads.h"

#include <utility>

#include "kernels/device_hash.h"

namespace driftless {

Result<std::unique_ptr<SendRoad>> make_nccl_sender(NcclOptions options, unsigned rank,
                                                   unsigned ranks, const NcclMeeting& meeting) {
  options.hash = device_xxh3_128;
  DRIFTLESS_ASSIGN_OR_RETURN(std::shared_ptr<nccl::Fabric> fabric, make_nccl_fabric(options));
  if (rank == 0) {
    DRIFTLESS_ASSIGN_OR_RETURN(std::unique_ptr<nccl::Hub> hub, meeting.hub());
    return nccl::make_leading_sender(options, ranks, std::move(fabric), std::move(hub));
  }
  DRIFTLESS_ASSIGN_OR_RETURN(std::unique_ptr<nccl::Connector> connector, meeting.connector());
  return nccl::make_other_sender(options, rank, ranks, std::move(fabric), std::move(connector));
}

Result<std::unique_ptr<ReceiveRoad>> make_nccl_receiver(NcclOptions options,
                                                        const NcclMeeting& meeting) {
  options.hash = device_xxh3_128;
  DRIFTLESS_ASSIGN_OR_RETURN(std::shared_ptr<nccl::Fabric> fabric, make_nccl_fabric(options));
  DRIFTLESS_ASSIGN_OR_RETURN(std::unique_ptr<nccl::Connector> connector, meeting.connector());
  return nccl::make_receiver(options, std::move(fabric), std::move(connector));
}

}  // namespace driftless
