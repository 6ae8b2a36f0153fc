// SPDX-License-Identifier: Apache-2.0
#include "collectives/nccl/opener.h"

#include "collectives/nccl/nccl_calls.h"

namespace driftless {
namespace nccl {
namespace {

constexpr std::chrono::seconds kEndPatience{3};  // for receivers that do not answer

Result<std::unique_ptr<SendRoad>> make_sender(const NcclOptions& options, const RoadPlace& place,
                                              const Meeting& meeting,
                                              const std::shared_ptr<EndNote>& end) {
  DRIFTLESS_ASSIGN_OR_RETURN(std::shared_ptr<Fabric> fabric, make_nccl_fabric(options));
  if (place.rank == 0) {
    DRIFTLESS_ASSIGN_OR_RETURN(std::unique_ptr<Hub> hub, meeting.hub());
    return make_leading_sender(options, place.trainers, std::move(fabric), std::move(hub), end);
  }
  DRIFTLESS_ASSIGN_OR_RETURN(Connector connector, meeting.connector());
  return make_other_sender(options, place.rank, place.trainers, std::move(fabric),
                           std::move(connector));
}

Result<OpenRoad> open_by_file(const RoadOptions& options, const RoadPlace& place) {
  const std::string dir = options_in<NcclSettings>(options).rendezvous.dir;
  return open_road(
      options, place,
      {[dir] { return hub::make_file_hub(dir); }, [dir] { return hub::make_file_connector(dir); }});
}

}  // namespace

Status usable() { return nccl_calls().status(); }

OpenRoad open_road(const RoadOptions& given, const RoadPlace& place, const Meeting& meeting) {
  NcclOptions options = options_in<NcclSettings>(given);
  options.hash = place.hash;
  options.start = place.start;
  if (options.receivers == 0 && place.mpi != nullptr) options.receivers = place.rollouts;
  OpenRoad road;
  const auto end = std::make_shared<EndNote>();
  road.sender = [=] { return make_sender(options, place, meeting, end); };
  road.receiver = [options, meeting, end]() -> Result<std::unique_ptr<ReceiveRoad>> {
    DRIFTLESS_ASSIGN_OR_RETURN(std::shared_ptr<Fabric> fabric, make_nccl_fabric(options));
    DRIFTLESS_ASSIGN_OR_RETURN(Connector connector, meeting.connector());
    return make_receiver(options, std::move(fabric), std::move(connector), end);
  };
  if (place.mpi != nullptr) return road;  // an mpirun job has its own message for the end of a run
  road.publish_end = [end](std::string_view text) {
    end->publish(text, Deadline::after(kEndPatience));
    return Status();
  };
  road.fetch_end = [end] { return Result<std::optional<std::string>>(end->text()); };
  return road;
}

}  // namespace nccl

constinit const RoadOpener kNcclFileOpener{.open = nccl::open_by_file, .usable = nccl::usable};

}  // namespace driftless
