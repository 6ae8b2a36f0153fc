// SPDX-License-Identifier: Apache-2.0
#include "collectives/nccl/opener.h"

namespace driftless {
namespace nccl {
namespace {

Result<OpenRoad> open_by_tcp(const RoadOptions& options, const RoadPlace& place) {
  const RendezvousOptions meet = options_in<NcclSettings>(options).rendezvous;
  return open_road(
      options, place,
      {[meet] { return make_tcp_hub(meet); }, [meet] { return make_tcp_connector(meet); }});
}

}  // namespace
}  // namespace nccl

constinit const RoadOpener kNcclTcpOpener{.open = nccl::open_by_tcp};

}  // namespace driftless
