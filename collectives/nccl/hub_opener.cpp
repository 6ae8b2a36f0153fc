// SPDX-License-Identifier: Apache-2.0
#include "collectives/nccl/opener.h"

namespace driftless {
namespace nccl {
namespace {

Result<OpenRoad> open_by_hub(const RoadOptions& options, const RoadPlace& place) {
  const HubOptions& given = options_in<NcclSettings>(options).rendezvous.hub;
  DRIFTLESS_ASSIGN_OR_RETURN(const HubOptions hub, hub::resolve(given, place.leader_host));
  return open_road(options, place,
                   {[hub] { return hub::make_tcp_hub(hub, nullptr); },
                    [hub] { return hub::make_tcp_connector(hub); }});
}

}  // namespace
}  // namespace nccl

constinit const RoadOpener kNcclHubOpener{.open = nccl::open_by_hub, .usable = nccl::usable};

}  // namespace driftless
