// SPDX-License-Identifier: Apache-2.0
// The contract suite of roads with a process for each publisher rank. Rank 0 of MPI_COMM_WORLD runs
// the tests and is no part of the road; its SendRoad and Group objects, and its ReceiveRoad objects
// where the road wants processes for them, stand for those of the other ranks, the workers.
#pragma once

#include <mpi.h>

#include <memory>
#include <string>

#include "mpi/road_server.h"
#include "support/road_contract.h"

namespace driftless::testing {

// What rank 0 has to know of a road.
struct RemoteRoad {
  // Receivers are made by the tests' process. Without it they are workers that do not publish.
  std::function<Result<std::unique_ptr<ReceiveRoad>>(const RemoteWorldOptions&)> receiver;
  bool directory = false;  // a new one for each world
};

// Null where there are fewer workers than ranks.
[[nodiscard]] std::unique_ptr<RoadWorld> make_remote_world(const WorldOptions& options,
                                                           const RemoteRoad& road);

// A whole main(). `least`: processes that the suite needs. `threads`: what this process asks of
// MPI; rank 0 needs MPI_THREAD_MULTIPLE.
[[nodiscard]] int run_remote_contract(int argc, char** argv, int least, int threads,
                                      const MakeRoadEnds& make);

}  // namespace driftless::testing
