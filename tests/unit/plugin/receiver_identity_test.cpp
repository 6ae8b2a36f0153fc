// SPDX-License-Identifier: Apache-2.0
// Refusals of a receiver: another run, base or layout, and weights that differ from their digest.
#include "support/receiver_fixture.h"

namespace driftless::testing {
namespace {

TEST_F(ReceiverTest, RefusesAnotherLayout) {
  announce();
  Weights less = run_.weights[0];
  less.erase("model.norm.weight");
  auto target = make_memory_target(layout_of(less), pointers(less), VersionId{}, 1);
  const Status status = open_on(**target);
  EXPECT_EQ(status.code(), StatusCode::kWrongLayout);
  EXPECT_NE(status.message().find("model.norm.weight"), std::string_view::npos)
      << status.to_string();
}

TEST_F(ReceiverTest, WhatTheRunDoesNotPublishIsLeftAlone) {
  announce();
  Weights more = run_.weights[0];
  more["a.frozen.tower"] = more["model.norm.weight"];
  auto target = make_memory_target(layout_of(more), pointers(more), VersionId{}, 1);
  const Status status = open_on(**target);
  ASSERT_TRUE(status.ok()) << status.to_string();
  EXPECT_EQ((*target)->left_alone(), std::vector<std::string>{"a.frozen.tower"});
  EXPECT_EQ((*target)->state().digest, digest_of(run_.weights[0]));
  send(*sender_, run_.step(1));
  ASSERT_TRUE(update().ok());
  EXPECT_EQ(more.at("a.frozen.tower").bytes, run_.weights[0].at("model.norm.weight").bytes);
  more.erase("a.frozen.tower");
  EXPECT_TRUE(same(more, run_.weights[1]));
  // A target at a version of the run must have exactly the tensors of the run.
  Weights again = more;
  again["a.frozen.tower"] = run_.weights[0].at("model.norm.weight");
  target = make_memory_target(layout_of(again), pointers(again), VersionId{run_.run, 1}, 1);
  EXPECT_EQ(open_on(**target).code(), StatusCode::kWrongLayout);
}

TEST_F(ReceiverTest, RefusesAnotherRunAndAnotherBase) {
  announce();
  EXPECT_EQ(open(VersionId{{1, 2}, 3}).code(), StatusCode::kWrongRun);
  Weights other = changed_weights(run_.weights[0], 5, 0.01);
  auto target = make_memory_target(run_.layout, pointers(other), VersionId{}, 1);
  EXPECT_EQ(open_on(**target).code(), StatusCode::kWrongBase);
}

TEST_F(ReceiverTest, RefusesAVersionOfAnotherRun) {
  announce();
  ASSERT_TRUE(open().ok());
  PublishedRun other(run_.weights[0], {7, 8});
  send(*sender_, other.step(1));
  EXPECT_EQ(update().status().code(), StatusCode::kWrongRun);
  EXPECT_TRUE(same(held_, run_.weights[0]));
}

TEST_F(ReceiverTest, AVersionWithAWrongDigestIsRefusedAndAFullOneHelps) {
  announce();
  Publication wrong = run_.step(1);
  wrong.manifest.digest.lanes[0] ^= 1;
  send(*sender_, wrong);
  int paused = 0;
  options_.pause = [&] { return ++paused, Status(); };
  ASSERT_TRUE(open().ok());
  EXPECT_EQ(update().status().code(), StatusCode::kMismatch);
  EXPECT_EQ(paused, 0) << "found before the engine is disturbed";
  EXPECT_TRUE(same(held_, run_.weights[0]));
  EXPECT_TRUE(receiver_->state().valid);
  EXPECT_EQ(update().status().code(), StatusCode::kMismatch)
      << "it may have been the fetched bytes";
  EXPECT_EQ(update().status().code(), StatusCode::kWrongBase)
      << "it was not: only a full one helps";
  EXPECT_EQ((*sender_->receivers())[0].proof, kAnchorWanted);
  send(*sender_, run_.anchor(1));
  ASSERT_TRUE(update().ok());
  EXPECT_TRUE(same(held_, run_.weights[1]));
  publish(2, 2);
  ASSERT_TRUE(update().ok()) << "and follows the steps again";
}

// A receiver of some of the tensors.
class PartReceiverTest : public ReceiverTest {
 protected:
  Status open_part(Weights held, const VersionId& holds = {}) {
    receiver_.reset();
    held_ = std::move(held);
    std::vector<std::byte*> data = pointers(held_);
    data[*run_.layout.find("model.embed.weight")] = nullptr;
    auto target = make_memory_target(run_.layout, std::move(data), holds, 1);
    if (!target.ok()) return target.status();
    target_ = std::move(*target);
    return open_on(*target_);
  }
  void send_of(PublishedRun& run, std::uint64_t version) { send(*sender_, run.step(version)); }
};

TEST_F(PartReceiverTest, FollowsItsRun) {
  announce();
  const Status opened = open_part(run_.weights[0]);
  ASSERT_TRUE(opened.ok()) << opened.to_string();
  for (const std::uint64_t version : {1, 2, 3}) {
    publish(version, version);
    const auto done = update();
    ASSERT_TRUE(done.ok()) << done.status().to_string();
    Weights expected = run_.weights[version];
    expected["model.embed.weight"] = run_.weights[0].at("model.embed.weight");
    EXPECT_TRUE(same(held_, expected));
  }
}

TEST_F(PartReceiverTest, RefusesTheBaseOfAnotherRunAndNamesTheTensor) {
  announce();
  Weights other = run_.weights[0];
  other["model.embed.weight"].bytes[0] ^= std::byte{1};
  EXPECT_TRUE(open_part(other).ok()) << "which it does not hold";
  other["model.layers.0.up.weight"].bytes[7] ^= std::byte{1};
  const Status refused = open_part(other);
  EXPECT_EQ(refused.code(), StatusCode::kWrongBase) << refused.to_string();
  EXPECT_NE(refused.message().find("model.layers.0.up.weight"), std::string_view::npos)
      << refused.to_string();
}

TEST_F(PartReceiverTest, RefusesVersionsThatBuildOnForeignOnes) {
  PublishedRun other(changed_weights(run_.weights[0], 5, 0.2), run_.run);
  announce();
  ASSERT_TRUE(open_part(run_.weights[0]).ok());
  send_of(other, 1);
  EXPECT_EQ(update().status().code(), StatusCode::kWrongBase) << "on another version 0";
  EXPECT_TRUE(same(held_, run_.weights[0]));
}

TEST_F(PartReceiverTest, RefusesALaterVersionThatBuildsOnAForeignOne) {
  PublishedRun other(changed_weights(run_.weights[0], 5, 0.2), run_.run);
  announce();
  ASSERT_TRUE(open_part(run_.weights[0]).ok());
  publish(1, 1);
  ASSERT_TRUE(update().ok());
  send_of(other, 2);
  EXPECT_EQ(update().status().code(), StatusCode::kWrongBase) << "on another version 1";
  EXPECT_EQ(target_->state().id.version, 1U);
}

// The announcement has digests of the base's tensors, the manifests have none: a part of version 1
// cannot be distinguished from a part of another run's.
TEST_F(PartReceiverTest, RefusesALaterVersionThatItOnlyClaimsToHold) {
  announce();
  publish(1, 2);
  const Weights foreign = changed_weights(run_.weights[0], 5, 0.2);
  for (const Hash128& run : {Hash128(), run_.run}) {
    const Status refused = open_part(foreign, VersionId{run, 1});
    ASSERT_EQ(refused.code(), StatusCode::kWrongBase) << refused.to_string();
    EXPECT_NE(refused.message().find("version 1"), std::string_view::npos) << refused.to_string();
  }
  ASSERT_TRUE(open_part(run_.weights[0]).ok());
  ASSERT_TRUE(update().ok());
  EXPECT_TRUE(open_on(*target_).ok()) << "it was brought there by this run";
}

}  // namespace
}  // namespace driftless::testing
