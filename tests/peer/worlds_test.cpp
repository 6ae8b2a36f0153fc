// SPDX-License-Identifier: Apache-2.0
// Runs the contract suite over each carrier.
#include "support/peer_world.h"

namespace driftless::testing {
namespace {

RoadCase peer_case(const char* name, PeerCarrier carrier) {
  return {.name = name,
          .make =
              [carrier](const WorldOptions& options) {
                return std::make_unique<PeerWorld>(options, carrier);
              },
          .ring = true};
}

INSTANTIATE_TEST_SUITE_P(Peer, RoadContractTest,
                         ::testing::Values(peer_case("tcp", PeerCarrier::kTcp),
                                           peer_case("shm", PeerCarrier::kShm)),
                         road_case_name);

}  // namespace
}  // namespace driftless::testing
