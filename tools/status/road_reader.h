// SPDX-License-Identifier: Apache-2.0
// Makes the reader behind make_road_reader() (status_reader.h) from an open road.
#pragma once

#include "plugin/job/config.h"
#include "tools/status/status_reader.h"

namespace driftless {

// `location` names the road in messages. `opener` takes `config.road_options()` and outlives the
// reader. The opener must have signs(); its other functions may be null.
[[nodiscard]] std::unique_ptr<StatusReader> make_reader_of_road(Config config, std::string location,
                                                                const RoadOpener& opener,
                                                                std::unique_ptr<ReceiveRoad> road,
                                                                std::size_t most_versions);

}  // namespace driftless
