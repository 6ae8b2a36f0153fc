// SPDX-License-Identifier: Apache-2.0
// How every road limits its memory: rings, receivers and their reports, pruning.
#include <algorithm>

#include "support/road_contract.h"

namespace driftless::testing {
namespace {

// Roads that remove old versions by themselves.
TEST_P(RoadContractTest, ARingDropsTheOldestSteps) {
  if (!GetParam().ring) GTEST_SKIP() << "this road has no ring: prune() makes its room";
  MAKE_WORLD(world, {.ranks = 1, .ring_versions = 3});
  ASSERT_OK(publish(world, anchor(0), some_parts(1, 1, 100, 29)));
  for (std::uint64_t v = 1; v <= 6; ++v) {
    ASSERT_OK(publish(world, step(v), some_parts(1, 1, 100, v)));
  }
  const auto pruned = world.sender(0).prune(6);
  ASSERT_OK(pruned);
  EXPECT_TRUE(pruned->empty());
  const auto receiver = world.receiver();
  const auto ids = listed(*receiver);
  EXPECT_TRUE(std::ranges::find(ids, anchor(0)) != ids.end()) << "the only anchor stays";
  EXPECT_TRUE(std::ranges::find(ids, step(6)) != ids.end());
  EXPECT_TRUE(std::ranges::find(ids, step(3)) == ids.end());
  EXPECT_LE(ids.size(), 4U);
}

TEST_P(RoadContractTest, ARingDropsTheOldestStepsWhenItsBytesAreUsed) {
  if (!GetParam().ring) GTEST_SKIP() << "this road has no ring: prune() makes its room";
  MAKE_WORLD(world, {.ranks = 1, .ring_bytes = 100'000});
  for (std::uint64_t v = 1; v <= 5; ++v) {
    ASSERT_OK(publish(world, step(v), some_parts(1, 1, 40'000, v)));
  }
  const auto ids = listed(*world.receiver());
  ASSERT_FALSE(ids.empty());
  EXPECT_EQ(ids.back(), step(5));
  EXPECT_LE(ids.size(), 2U);
  // The road refuses a part that no ring can hold while it is written, and then continues to work.
  ASSERT_OK(world.sender(0).begin(step(6), soon()));
  {
    auto file = world.sender(0).create_part("huge");
    ASSERT_OK(file);
    EXPECT_EQ((*file)->pwrite(0, random_part(100'001, 30)).code(), StatusCode::kNoSpace);
  }
  ASSERT_OK(world.sender(0).abort());
  ASSERT_OK(publish(world, step(6), some_parts(1, 1, 40'000, 31)));
}

TEST_P(RoadContractTest, ReceiversAreKnownUntilTheyLeave) {
  MAKE_WORLD(world);
  const auto none = world.sender(0).receivers();
  ASSERT_OK(none);
  EXPECT_TRUE(none->empty());
  const auto first = world.receiver();
  const auto second = world.receiver();
  const std::string proof("digest \0\xff\x80 of it", 16);
  ASSERT_OK(first->report({"first", 3, proof}, soon()));
  ASSERT_OK(second->report({"second", 0, ""}, soon()));
  const std::string needs("\x28\xb5\x2f\xfd\0 slices", 12);
  ASSERT_OK(first->report({"first", 4, proof, needs}, soon()));
  auto all = world.sender(0).receivers();
  ASSERT_OK(all);
  std::ranges::sort(*all, {}, &ReceiverReport::id);
  ASSERT_EQ(all->size(), 2U);
  EXPECT_EQ((*all)[0].id, "first");
  EXPECT_EQ((*all)[0].version, 4U);
  EXPECT_EQ((*all)[0].proof, proof);
  EXPECT_EQ((*all)[0].needs, needs);
  EXPECT_EQ((*all)[1].needs, "");
  EXPECT_EQ((*all)[1].id, "second");
  EXPECT_EQ((*all)[1].version, 0U);
  ASSERT_OK(first->leave(soon()));
  ASSERT_OK(first->leave(soon())) << "who has left may say so again";
  const auto left = world.sender(0).receivers();
  ASSERT_OK(left);
  ASSERT_EQ(left->size(), 1U);
  EXPECT_EQ(left->front().id, "second");
  EXPECT_EQ(world.sender(0).left(), std::vector<std::string>{"first"});
  ASSERT_OK(first->report({"first", 4, proof}, soon()));
  ASSERT_OK(world.sender(0).receivers());
  EXPECT_TRUE(world.sender(0).left().empty()) << "it is back";
}

TEST_P(RoadContractTest, ABadReportIsRefused) {
  MAKE_WORLD(world);
  const auto receiver = world.receiver();
  EXPECT_FALSE(receiver->report({"a/b", 1, ""}, soon()).ok());
  EXPECT_FALSE(receiver->report({"", 1, ""}, soon()).ok());
  EXPECT_FALSE(receiver->report({"id", 1, std::string(kMaxProofBytes + 1, 'x')}, soon()).ok());
  EXPECT_FALSE(receiver->report({"id", 1, "", std::string(kMaxNeedsBytes + 1, 'x')}, soon()).ok());
  ASSERT_OK(receiver->report(
      {"id", 1, std::string(kMaxProofBytes, 'x'), std::string(kMaxNeedsBytes, '\xff')}, soon()));
}

TEST_P(RoadContractTest, ASilentReceiverIsForgottenAndComesBack) {
  MAKE_WORLD(world, {.ranks = 1, .patience = std::chrono::milliseconds(1000)});
  const auto silent = world.receiver();
  const auto lively = world.receiver();
  ASSERT_OK(silent->report({"silent", 1, ""}, soon()));
  ASSERT_OK(lively->report({"lively", 1, ""}, soon()));
  EXPECT_EQ(world.sender(0).receivers()->size(), 2U);
  const Deadline end = in_ms(1500);
  while (!end.expired()) {
    ASSERT_OK(lively->report({"lively", 1, ""}, soon()));  // a sign of life without news
    ASSERT_OK(world.sender(0).receivers());
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  const auto left = world.sender(0).receivers();
  ASSERT_OK(left);
  ASSERT_EQ(left->size(), 1U);
  EXPECT_EQ(left->front().id, "lively");
  EXPECT_TRUE(world.sender(0).left().empty()) << "it did not sign off";
  ASSERT_OK(silent->report({"silent", 1, ""}, soon()));
  EXPECT_EQ(world.sender(0).receivers()->size(), 2U);
}

// Roads on which prune() removes versions.
TEST_P(RoadContractTest, PruneRemovesOnlyWhatTheAnchorReplaces) {
  if (GetParam().ring) GTEST_SKIP() << "this road's ring makes its room: see ARingPrunesNothing";
  MAKE_WORLD(world, {.ranks = 2});
  for (const auto& id : {anchor(0), step(1), step(2), anchor(2), step(3), step(4), anchor(4)}) {
    ASSERT_OK(publish(world, id, some_parts(2, 1, 100, 32)));
  }
  const auto pruned = world.sender(0).prune(2);
  ASSERT_OK(pruned);
  std::vector<PublicationId> removed = *pruned;
  std::ranges::sort(removed);
  EXPECT_EQ(removed, (std::vector{anchor(0), step(1), step(2)}));
  EXPECT_EQ(listed(*world.receiver()), (std::vector{anchor(2), step(3), step(4), anchor(4)}));
  EXPECT_TRUE(world.sender(0).prune(2)->empty());
}

TEST_P(RoadContractTest, PruneKeepsTheStepsPastAListedReceiver) {
  if (GetParam().ring) GTEST_SKIP() << "this road's ring makes its room: see ARingPrunesNothing";
  MAKE_WORLD(world);
  for (std::uint64_t v = 1; v <= 6; ++v) {
    ASSERT_OK(publish(world, step(v), some_parts(1, 1, 100, v)));
  }
  const auto slow = world.receiver();
  const auto fast = world.receiver();
  ASSERT_OK(slow->report({"slow", 2, "proof"}, soon()));
  ASSERT_OK(fast->report({"fast", 6, "proof"}, soon()));
  EXPECT_EQ(*world.sender(0).prune(5), (std::vector{step(1), step(2)}));
  ASSERT_OK(slow->report({"slow", 4, "proof"}, soon()));
  EXPECT_EQ(*world.sender(0).prune(5), (std::vector{step(3), step(4)}));
  ASSERT_OK(slow->leave(soon()));
  EXPECT_EQ(*world.sender(0).prune(5), std::vector{step(5)});
  EXPECT_EQ(listed(*fast), std::vector{step(6)});
}

TEST_P(RoadContractTest, PruneKeepsTheOldestAnchorForAReceiverWithoutAVersion) {
  if (GetParam().ring) GTEST_SKIP() << "this road's ring makes its room: see ARingPrunesNothing";
  MAKE_WORLD(world);
  for (const auto& id : {step(1), step(2), anchor(2), step(3), step(4), anchor(4), step(5)}) {
    ASSERT_OK(publish(world, id, some_parts(1, 1, 100, 33)));
  }
  const auto joining = world.receiver();
  ASSERT_OK(joining->report({"joining", 0, ""}, soon()));  // no proof: it holds nothing
  EXPECT_EQ(*world.sender(0).prune(4), (std::vector{step(1), step(2)}));
  EXPECT_EQ(listed(*joining), (std::vector{anchor(2), step(3), step(4), anchor(4), step(5)}));
  ASSERT_OK(joining->report({"joining", 3, "proof"}, soon()));
  EXPECT_EQ(*world.sender(0).prune(4), (std::vector{anchor(2), step(3)}));
}

TEST_P(RoadContractTest, PruneKeepsEverythingForAReceiverAtTheBase) {
  if (GetParam().ring) GTEST_SKIP() << "this road's ring makes its room: see ARingPrunesNothing";
  MAKE_WORLD(world);
  for (const auto& id : {step(1), step(2), anchor(2), step(3)}) {
    ASSERT_OK(publish(world, id, some_parts(1, 1, 100, 34)));
  }
  const auto starting = world.receiver();
  ASSERT_OK(starting->report({"starting", 0, "digest of the base"}, soon()));
  const auto pruned = world.sender(0).prune(3);
  ASSERT_OK(pruned);
  EXPECT_EQ(*pruned, std::vector{anchor(2)}) << "it follows the steps";
}

TEST_P(RoadContractTest, ARingPrunesNothing) {
  if (!GetParam().ring) GTEST_SKIP() << "this road has no ring: prune() makes its room";
  MAKE_WORLD(world);
  for (std::uint64_t v = 1; v <= 3; ++v)
    ASSERT_OK(publish(world, step(v), some_parts(1, 1, 10, v)));
  const auto pruned = world.sender(0).prune(2);
  ASSERT_OK(pruned);
  EXPECT_TRUE(pruned->empty());
  EXPECT_EQ(listed(*world.receiver()), (std::vector{step(1), step(2), step(3)}));
}

}  // namespace
}  // namespace driftless::testing
