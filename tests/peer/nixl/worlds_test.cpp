// SPDX-License-Identifier: Apache-2.0
// The contract of roads over real NIXL, between two agents of this process.
#include "peer/nixl/nixl_library.h"
#include "support/peer_world.h"

namespace driftless::testing {
namespace {

std::vector<RoadCase> nixl_cases() {
  if (nixl_library().path.empty()) return {};
  return {{.name = "nixl",
           .make =
               [](const WorldOptions& options) {
                 return std::make_unique<PeerWorld>(options, PeerCarrier::kNixl,
                                                    nixl_library().path);
               },
           .ring = true}};
}

INSTANTIATE_TEST_SUITE_P(Peer, RoadContractTest, ::testing::ValuesIn(nixl_cases()), road_case_name);

TEST(PeerNixlTest, IsHere) { NEED_NIXL(); }

TEST(PeerNixlTest, ReportsTheCarrierOfTheBytes) {
  NEED_NIXL();
  PeerWorld world({}, PeerCarrier::kNixl, nixl_library().path);
  EXPECT_NE(world.sender(0).notes().front().find("and by NIXL"), std::string::npos);
  const RankParts parts = some_parts(1, 1, 1000, 3);
  const auto receipts = publish(world, step(1), parts);
  ASSERT_OK(receipts);
  const auto receiver = world.receiver();
  EXPECT_EQ(receiver->carrier(), "");
  expect_fetched(*receiver, step(1), parts, *receipts);
  EXPECT_EQ(receiver->carrier(), "nixl");
}

}  // namespace
}  // namespace driftless::testing
