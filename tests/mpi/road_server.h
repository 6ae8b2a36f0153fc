// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <mpi.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "collectives/group.h"
#include "collectives/road.h"
#include "core/status.h"

namespace driftless::testing {

// The description of a world, sent to all workers.
struct RemoteWorldOptions {
  unsigned ranks = 1;  // the first workers publish
  std::chrono::milliseconds patience{0};
  std::uint64_t ring_bytes = 0;
  unsigned ring_versions = 0;
  std::string directory;
};

// One worker's ends of a road; null if its role does not have them.
struct RoadEnds {
  std::shared_ptr<void> world;  // outlives the others
  std::unique_ptr<Group> group;
  std::unique_ptr<SendRoad> sender;
  std::function<Result<std::unique_ptr<ReceiveRoad>>()> receiver;
};
// Collective over `workers`.
using MakeRoadEnds =
    std::function<Result<RoadEnds>(MPI_Comm workers, const RemoteWorldOptions& options)>;

// Serves rank 0's requests on `calls` until the request to quit. `workers`: all ranks but rank 0.
void serve_road(MPI_Comm calls, MPI_Comm workers, const MakeRoadEnds& make);

}  // namespace driftless::testing
