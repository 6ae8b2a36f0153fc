// SPDX-License-Identifier: Apache-2.0
// The contract suite of roads with a process for each publisher rank. Rank 0 of MPI_COMM_WORLD runs
// the tests and takes no part in the road. Its SendRoad and Group objects stand for those of the
// other ranks, the workers; so do its ReceiveRoad objects if the road needs processes for
// receivers.
#pragma once

#include <mpi.h>

#include <memory>
#include <string>

#include "mpi/road_server.h"
#include "support/road_contract.h"

namespace driftless::testing {

// Describes a road to rank 0.
struct RemoteRoad {
  // Makes a receiver in the tests' process. If empty, workers that do not publish are the
  // receivers.
  std::function<Result<std::unique_ptr<ReceiveRoad>>(const RemoteWorldOptions&)> receiver;
  bool directory = false;  // a new one for each world
};

// Null if there are fewer workers than ranks.
[[nodiscard]] std::unique_ptr<RoadWorld> make_remote_world(const WorldOptions& options,
                                                           const RemoteRoad& road);

// A whole main(). `least`: the number of processes that the suite needs. `threads`: the level that
// this process requests from MPI; rank 0 needs MPI_THREAD_MULTIPLE.
[[nodiscard]] int run_remote_contract(int argc, char** argv, int least, int threads,
                                      const MakeRoadEnds& make);

}  // namespace driftless::testing
