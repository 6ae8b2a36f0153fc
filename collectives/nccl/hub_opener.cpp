// SPDX-License-Identifier: Apache-2.0
#include "collectives/hub/port.h"
#include "collectives/nccl/opener.h"

namespace driftless {
namespace nccl {
namespace {

constexpr const char* kService = "nccl";

Result<OpenRoad> open_by_hub(const RoadOptions& options, const RoadPlace& place) {
  const HubOptions& given = options_in<NcclSettings>(options).rendezvous.hub;
  DRIFTLESS_ASSIGN_OR_RETURN(const HubOptions hub, hub::resolve(given, place.leader_host));
  const auto port = place.port != nullptr ? place.port : hub::make_tcp_port(hub);
  return open_road(
      options, place,
      {[port] { return port->serve(kService); }, [port] { return port->connector(kService); }});
}

}  // namespace
}  // namespace nccl

constinit const RoadOpener kNcclHubOpener{.open = nccl::open_by_hub, .usable = nccl::usable};

}  // namespace driftless
