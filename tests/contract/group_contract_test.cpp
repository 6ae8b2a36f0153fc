// SPDX-License-Identifier: Apache-2.0
// What every group of publisher ranks must do.
#include "support/road_contract.h"

namespace driftless::testing {
namespace {

TEST_P(GroupContractTest, GathersAndBroadcasts) {
  MAKE_WORLD(world, {.ranks = 4});
  for (unsigned rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(world.group(rank).rank(), rank);
    EXPECT_EQ(world.group(rank).size(), 4U);
  }
  ASSERT_OK(on_all_ranks(world, [&](unsigned rank) -> Status {
    Group& group = world.group(rank);
    for (std::uint64_t epoch = 1; epoch <= 20; ++epoch) {
      group.begin_epoch(epoch);
      for (int round = 0; round < 3; ++round) {
        const std::string mine = concat("rank ", rank, " epoch ", epoch, " round ", round);
        DRIFTLESS_ASSIGN_OR_RETURN(const auto all, group.gather(mine, soon()));
        if (all.size() != (rank == 0 ? 4U : 0U)) return error(StatusCode::kInternal, "size");
        for (unsigned from = 0; from < all.size(); ++from) {
          if (all[from] != concat("rank ", from, " epoch ", epoch, " round ", round)) {
            return error(StatusCode::kInternal, "got ", all[from]);
          }
        }
        const std::string word = concat("word ", epoch, " ", round);
        DRIFTLESS_ASSIGN_OR_RETURN(const auto received,
                                   group.broadcast(rank == 0 ? word : "", soon()));
        if (received != word) return error(StatusCode::kInternal, "heard ", received);
      }
    }
    return {};
  }));
}

TEST_P(GroupContractTest, ADeadlineNamesTheSilentRanks) {
  MAKE_WORLD(world, {.ranks = 4});
  const Status status = on_all_ranks(world, [&](unsigned rank) -> Status {
    world.group(rank).begin_epoch(1);
    if (rank == 1 || rank == 3) return {};
    return world.group(rank).gather("here", in_ms(200)).status();
  });
  ASSERT_EQ(status.code(), StatusCode::kDeadlineExceeded) << status.to_string();
  EXPECT_NE(status.message().find('1'), std::string::npos) << status.to_string();
  EXPECT_NE(status.message().find('3'), std::string::npos) << status.to_string();
  const auto received = world.group(2).broadcast("", in_ms(50));
  ASSERT_EQ(received.status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_NE(received.status().message().find("rank 0"), std::string::npos);
}

TEST_P(GroupContractTest, ANewEpochForgetsTheOldAndKeepsWhatIsAhead) {
  MAKE_WORLD(world, {.ranks = 3});
  // Rank 2 fails in epoch 1, after rank 1 has sent its message of epoch 1; rank 1 is ahead, in
  // epoch 2.
  for (unsigned rank = 0; rank < 3; ++rank) world.group(rank).begin_epoch(1);
  ASSERT_OK(world.group(1).gather("old", soon()));
  EXPECT_EQ(world.group(0).gather("leader", in_ms(50)).status().code(),
            StatusCode::kDeadlineExceeded);
  world.group(1).begin_epoch(2);
  ASSERT_OK(world.group(1).gather("new of 1", soon()));
  ASSERT_OK(world.group(2).gather("late of epoch 1", soon()));
  world.group(0).begin_epoch(2);
  world.group(2).begin_epoch(2);
  ASSERT_OK(world.group(2).gather("new of 2", soon()));
  const auto all = world.group(0).gather("leader", soon());
  ASSERT_OK(all);
  EXPECT_EQ(*all, (std::vector<std::string>{"leader", "new of 1", "new of 2"}));
  // A rank does not receive a broadcast of an epoch that it has left.
  ASSERT_OK(world.group(0).broadcast("of epoch 2", soon()));
  world.group(1).begin_epoch(3);
  world.group(0).begin_epoch(3);
  ASSERT_OK(world.group(0).broadcast("of epoch 3", soon()));
  const auto received = world.group(1).broadcast("", soon());
  ASSERT_OK(received);
  EXPECT_EQ(*received, "of epoch 3");
}

}  // namespace
}  // namespace driftless::testing
