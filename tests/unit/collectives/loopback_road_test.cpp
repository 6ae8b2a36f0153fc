// SPDX-License-Identifier: Apache-2.0
// What the loopback road does beyond the contract suite (tests/contract/road_contract_test.cpp).
#include "support/loopback_road.h"

#include <gtest/gtest.h>

#include "support/road_contract.h"

namespace driftless::testing {
namespace {

TEST(LoopbackRoadTest, ALateFlushOfAnAbortedAttemptIsRefused) {
  LoopbackHub hub({}, 2);
  const auto leader = hub.sender(0);
  const auto other = hub.sender(1);
  ASSERT_OK(leader->begin(step(1), soon()));
  ASSERT_OK(other->begin(step(1), soon()));
  ASSERT_OK(write_part(*other, {"late", random_part(10, 1)}));
  ASSERT_OK(leader->abort());
  ASSERT_OK(leader->begin(step(1), soon()));
  EXPECT_FALSE(other->flush(soon()).ok()) << "its parts are of the attempt before";
  ASSERT_OK(leader->flush(soon()));
  const Status sealed = leader->seal("manifest", soon());
  ASSERT_FALSE(sealed.ok());
  EXPECT_NE(sealed.message().find("rank 1"), std::string::npos) << sealed.to_string();
}

TEST(LoopbackRoadTest, ARankCannotBeginBeforeTheLeader) {
  LoopbackHub hub({}, 2);
  EXPECT_EQ(hub.sender(1)->begin(step(1), soon()).code(), StatusCode::kInvalidArgument);
}

TEST(LoopbackRoadTest, VersionsAscend) {
  LoopbackHub hub({}, 1);
  const auto sender = hub.sender(0);
  ASSERT_OK(sender->begin(step(5), soon()));
  ASSERT_OK(sender->flush(soon()));
  ASSERT_OK(sender->seal("manifest", soon()));
  EXPECT_EQ(sender->begin(step(4), soon()).code(), StatusCode::kInvalidArgument);
  ASSERT_OK(sender->begin(anchor(4), soon())) << "anchors are counted apart";
}

TEST(LoopbackRoadTest, TheNewestAnchorReplacesTheOneBeforeOnlyWhenSealed) {
  LoopbackHub hub({.ring_bytes = 100}, 1);
  const auto sender = hub.sender(0);
  const auto receiver = hub.receiver();
  for (const std::uint64_t version : {0U, 3U}) {
    ASSERT_OK(sender->begin(anchor(version), soon()));
    ASSERT_OK(write_part(*sender, {"anchor", random_part(1000, version)})) << "beside the ring";
    ASSERT_OK(sender->flush(soon()));
    EXPECT_EQ(receiver->list(soon())->size(), version == 0 ? 0U : 1U);
    ASSERT_OK(sender->seal("manifest", soon()));
  }
  EXPECT_EQ(*receiver->list(soon()), std::vector{anchor(3)});
}

TEST(LoopbackRoadTest, RoadsMayOutliveTheHub) {
  auto hub = std::make_unique<LoopbackHub>(LoopbackOptions{}, 1);
  const auto sender = hub->sender(0);
  const auto receiver = hub->receiver();
  hub.reset();
  ASSERT_OK(sender->announce("run", soon()));
  EXPECT_EQ(*receiver->run_info(soon()), "run");
}

}  // namespace
}  // namespace driftless::testing
