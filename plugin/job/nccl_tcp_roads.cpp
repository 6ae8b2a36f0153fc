// SPDX-License-Identifier: Apache-2.0
#include "plugin/job/road_openers.h"

namespace driftless {

Result<OpenRoad> open_nccl_tcp_road(const Config& config, const RoadPlace& place) {
  const RendezvousOptions& options = config.rendezvous;
  return nccl_road(config.nccl, place,
                   {[options] { return nccl::make_tcp_hub(options); },
                    [options] { return nccl::make_tcp_connector(options); }});
}

}  // namespace driftless
