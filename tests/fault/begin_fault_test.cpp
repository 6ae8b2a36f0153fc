// SPDX-License-Identifier: Apache-2.0
// Two publisher ranks over files, one of which begins late. If either fails meanwhile, both learn
// of it at once, not at the deadline.
#include <gtest/gtest.h>

#include <functional>
#include <thread>

#include "collectives/shared_fs/shared_fs_road.h"
#include "plugin/publish/publisher.h"
#include "support/faulty_road.h"
#include "support/loopback_road.h"
#include "support/temp_dir.h"
#include "support/weight_source.h"
#include "support/weights.h"

namespace driftless {
namespace {

using namespace std::chrono_literals;
using testing::FaultyRoad;
using testing::MemorySource;
using testing::RoadFault;
using testing::Weights;

constexpr unsigned kRanks = 2;
constexpr auto kDeadline = 20s;

class BeginFaultTest : public ::testing::Test {
 protected:
  void SetUp() override {
    SharedFsOptions files;
    files.dir = directory_.file("road");
    PublisherOptions options;
    options.threads = 1;
    options.layout = DirectoryLayout::kFlush;
    options.deadline = kDeadline;
    for (unsigned rank = 0; rank < kRanks; ++rank) {
      auto sender = make_shared_fs_sender(posix_file_system(), files, rank, kRanks);
      ASSERT_TRUE(sender.ok()) << sender.status().to_string();
      roads_.push_back(std::make_unique<FaultyRoad>(std::move(*sender)));
      groups_.push_back(hub_.group(rank));
    }
    publishers_.resize(kRanks);
    each([&](unsigned rank) -> Status {
      MemorySource source(base_, rank, kRanks, 3);
      auto opened = Publisher::open(options, *groups_[rank], *roads_[rank], nullptr, source);
      if (opened.ok()) publishers_[rank] = std::move(*opened);
      return opened.status();
    });
    for (const auto& publisher : publishers_) ASSERT_NE(publisher, nullptr);
  }

  std::vector<Status> each(const std::function<Status(unsigned)>& work) {
    std::vector<Status> statuses(kRanks);
    std::thread other([&] { statuses[1] = work(1); });
    statuses[0] = work(0);
    other.join();
    return statuses;
  }
  std::vector<Status> publish(const Weights& weights) {
    return each([&](unsigned rank) -> Status {
      MemorySource source(weights, rank, kRanks, 3);
      return publishers_[rank]->publish(source).status();
    });
  }

  const testing::TempDir directory_{testing::TempDir::Where::kMemory};
  const Weights base_ = testing::random_weights(1, 16);
  LoopbackHub hub_{{}, kRanks};  // for the groups
  std::vector<std::unique_ptr<FaultyRoad>> roads_;
  std::vector<std::unique_ptr<Group>> groups_;
  std::vector<std::unique_ptr<Publisher>> publishers_;
};

TEST_F(BeginFaultTest, AFailureBeforeAnotherRankHasBegunReachesItAtOnce) {
  roads_[1]->delay_begin(50ms);
  std::uint64_t seed = 0;
  for (unsigned bad = 0; bad < kRanks; ++bad) {
    for (const RoadFault fault :
         {RoadFault::kBegin, RoadFault::kCreate, RoadFault::kWrite, RoadFault::kFlush}) {
      roads_[bad]->arm(fault);
      const auto began = std::chrono::steady_clock::now();
      for (const Status& status : publish(testing::changed_weights(base_, ++seed, 0.01, "none"))) {
        EXPECT_NE(status.message().find("injected"), std::string::npos) << status.to_string();
      }
      EXPECT_LT(std::chrono::steady_clock::now() - began, kDeadline / 4)
          << static_cast<int>(fault) << " on rank " << bad;
    }
  }
  for (const Status& status : publish(testing::changed_weights(base_, ++seed, 0.01, "none"))) {
    EXPECT_TRUE(status.ok()) << status.to_string();
  }
  EXPECT_EQ(publishers_[1]->version().version, 1U);
}

}  // namespace
}  // namespace driftless
