// SPDX-License-Identifier: Apache-2.0
// The reader behind make_road_reader() (status_reader.h), over a road that is open already.
#pragma once

#include "plugin/job/config.h"
#include "tools/status/status_reader.h"

namespace driftless {

// `location` names the road in messages; `config.road_options()` are what `opener` takes, and
// `opener` outlives the reader. The opener has signs(); its other functions may be null.
[[nodiscard]] std::unique_ptr<StatusReader> make_reader_of_road(Config config, std::string location,
                                                                const RoadOpener& opener,
                                                                std::unique_ptr<ReceiveRoad> road,
                                                                std::size_t most_versions);

}  // namespace driftless
