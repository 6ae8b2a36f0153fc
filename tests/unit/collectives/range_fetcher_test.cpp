// SPDX-License-Identifier: Apache-2.0
#include "collectives/range_fetcher.h"

#include <atomic>
#include <mutex>
#include <random>
#include <thread>

#include "collectives/forwarding_receive_road.h"
#include "support/loopback_road.h"
#include "support/road_contract.h"

namespace driftless::testing {
namespace {

// Copies the bytes that it returns, counts the bytes that callers hold, and fails if a test asks
// for it.
class CountedRoad final : public ForwardingReceiveRoad {
 public:
  CountedRoad(std::unique_ptr<ReceiveRoad> road, bool at_once)
      : ForwardingReceiveRoad(std::move(road)), at_once_(at_once) {}

  std::atomic<std::uint64_t> calls = 0, held = 0, most_held = 0;
  std::atomic<int> fail_after = -1;  // calls that go well; negative: all
  bool shorter = false;
  std::thread::id caller = std::this_thread::get_id();
  std::atomic<bool> other_thread = false;

  Result<std::vector<MappedFile>> fetch_ranges(const PublicationId& id, const PartReceipt& part,
                                               std::span<const ByteRange> ranges,
                                               const Deadline& deadline) override {
    ++calls;
    if (std::this_thread::get_id() != caller) other_thread = true;
    // On a loaded machine the caller's thread would take all ranges before another one runs.
    if (at_once_ && !other_thread) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (fail_after >= 0 && fail_after-- == 0) return error(StatusCode::kIo, "injected failure");
    DRIFTLESS_ASSIGN_OR_RETURN(std::vector<MappedFile> bytes,
                               road_->fetch_ranges(id, part, ranges, deadline));
    for (MappedFile& file : bytes) file = counted(file);
    return bytes;
  }
  [[nodiscard]] bool fetches_at_once() const override { return at_once_; }

 private:
  MappedFile counted(const MappedFile& file) {
    const std::uint64_t size = file.bytes().size() - (shorter && !file.bytes().empty() ? 1 : 0);
    const std::uint64_t now = held += size;
    for (std::uint64_t most = most_held; now > most;) {
      if (most_held.compare_exchange_weak(most, now)) break;
    }
    const std::shared_ptr<std::vector<std::byte>> copy(
        new std::vector<std::byte>(file.bytes().begin(), file.bytes().end()),
        [this, size](std::vector<std::byte>* bytes) {
          held -= size;
          delete bytes;
        });
    return MappedFile(file.path(), copy, std::span(*copy).first(size));
  }

  const bool at_once_;
};

class RangeFetcherTest : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    const auto sender = hub_.sender(0);
    ASSERT_OK(sender->begin(step(1), soon()));
    for (const TestPart& part : parts_) ASSERT_OK(write_part(*sender, part));
    auto receipts = sender->flush(soon());
    ASSERT_OK(receipts);
    for (PartReceipt& receipt : *receipts) wanted_.push_back({std::move(receipt), {}});
    ASSERT_OK(sender->seal(manifest_of(step(1)), soon()));
  }

  // Every range comes once, as it was written.
  void expect_taken(const RangeFetchOptions& options) {
    std::mutex mutex;
    std::vector<std::vector<int>> times;
    for (const WantedPart& part : wanted_) times.emplace_back(part.ranges.size());
    const auto take = [&](std::size_t part, std::size_t range, const MappedFile& bytes) -> Status {
      const ByteRange& wanted = wanted_[part].ranges[range];
      EXPECT_TRUE(std::ranges::equal(
          bytes.bytes(), std::span(parts_[part].bytes).subspan(wanted.offset, wanted.size_bytes)));
      const std::scoped_lock lock(mutex);
      ++times[part][range];
      return {};
    };
    report_ = fetch_wanted(road_, step(1), wanted_, options, take, soon());
    ASSERT_OK(report_);
    for (const std::vector<int>& of_part : times) {
      EXPECT_TRUE(std::ranges::all_of(of_part, [](int count) { return count == 1; }));
    }
    EXPECT_EQ(road_.held, 0U);
  }

  static Status take_nothing(std::size_t, std::size_t, const MappedFile&) { return {}; }

  const std::vector<TestPart> parts_{
      {"a", random_part(100'000, 1)}, {"b", random_part(50'000, 2)}, {"c", random_part(10, 3)}};
  LoopbackHub hub_{{}, 1};
  CountedRoad road_{hub_.receiver(), GetParam()};
  std::vector<WantedPart> wanted_;
  Result<RangeFetchReport> report_ = RangeFetchReport();
};
INSTANTIATE_TEST_SUITE_P(Roads, RangeFetcherTest, ::testing::Bool(),
                         [](const auto& one) { return one.param ? "manyThreads" : "oneThread"; });

TEST_P(RangeFetcherTest, EveryRangeComesOnce) {
  std::mt19937_64 random(4);
  for (WantedPart& part : wanted_) {
    for (int i = 0; i < 200; ++i) {
      const std::uint64_t offset = random() % part.part.size_bytes;
      part.ranges.push_back(
          {offset, random() % std::min<std::uint64_t>(part.part.size_bytes - offset + 1, 999)});
    }
  }
  for (const std::uint64_t gap : {0, 50, 1'000'000}) {
    for (const std::uint64_t memory : {1, 2'000, 1'000'000}) {
      expect_taken({.workers = 3, .memory_bytes = memory, .gap_bytes = gap});
    }
  }
  EXPECT_EQ(road_.other_thread, GetParam()) << "only a road that says so is called by others";
}

TEST_P(RangeFetcherTest, NothingWantedIsNothingFetched) {
  expect_taken({});
  EXPECT_EQ(road_.calls, 0U);
  EXPECT_EQ(report_->fetched_bytes, 0U);
}

TEST_P(RangeFetcherTest, NearRangesAreFetchedAsOneAndTheReportCountsTheGaps) {
  wanted_[0].ranges = {{500, 100}, {0, 100}, {150, 50}, {520, 10}, {90'000, 1'000}};
  expect_taken({.gap_bytes = 50});
  EXPECT_EQ(report_->needed_bytes, 1'250U);
  EXPECT_EQ(report_->fetched_bytes, 1'300U);
  EXPECT_EQ(report_->requests, 3U);
  expect_taken({.gap_bytes = 49});
  EXPECT_EQ(report_->fetched_bytes, 1'250U);
  EXPECT_EQ(report_->requests, 4U);
}

class BatchedRoad final : public ForwardingReceiveRoad {
 public:
  using ForwardingReceiveRoad::ForwardingReceiveRoad;
  [[nodiscard]] bool batches_ranges() const override { return true; }
};

TEST_P(RangeFetcherTest, ARoadThatBatchesRangesFetchesSmallGapsOnly) {
  BatchedRoad road(hub_.receiver());
  ReceiveRoad& wrapped = road;
  EXPECT_TRUE(ForwardingReceiveRoad(wrapped).batches_ranges());
  EXPECT_FALSE(road_.batches_ranges());
  wanted_[0].ranges = {{0, 100}, {100 + kBatchedGapBytes, 100}, {201 + 2 * kBatchedGapBytes, 10}};
  const auto report = fetch_wanted(road, step(1), wanted_, {}, take_nothing, soon());
  ASSERT_OK(report);
  EXPECT_EQ(report->fetched_bytes, 210 + kBatchedGapBytes);
  EXPECT_EQ(report->requests, 2U);
  expect_taken({});
  EXPECT_EQ(report_->requests, 1U);
}

TEST_P(RangeFetcherTest, MemoryStaysWithinTheCap) {
  for (std::uint64_t at = 0; at + 500 <= 100'000; at += 500) {
    wanted_[0].ranges.push_back({at, 500});
  }
  expect_taken({.workers = 4, .memory_bytes = 8'000, .gap_bytes = 0});
  EXPECT_LE(road_.most_held, 8'000U);
  EXPECT_GE(road_.most_held, 2'000U);
  EXPECT_EQ(report_->fetched_bytes, 100'000U);
}

TEST_P(RangeFetcherTest, ARangeBeyondTheCapGoesAlone) {
  wanted_[0].ranges = {{0, 100}, {200, 90'000}, {95'000, 100}};
  wanted_[1].ranges = {{0, 50'000}};
  expect_taken({.workers = 4, .memory_bytes = 1'000, .gap_bytes = 0});
  EXPECT_LE(road_.most_held, 90'000U);
}

TEST_P(RangeFetcherTest, ARangeThatLeavesItsPartIsRefusedBeforeAnythingIsFetched) {
  wanted_[0].ranges = {{0, 100}};
  wanted_[2].ranges = {{5, 6}};
  const auto report = fetch_wanted(road_, step(1), wanted_, {}, take_nothing, soon());
  EXPECT_EQ(report.status().code(), StatusCode::kCorrupt);
  EXPECT_NE(report.status().message().find("'c'"), std::string::npos);
  EXPECT_EQ(road_.calls, 0U);
}

TEST_P(RangeFetcherTest, AFailureOfTheRoadEndsIt) {
  for (std::uint64_t at = 0; at < 100'000; at += 1'000) wanted_[0].ranges.push_back({at, 10});
  road_.fail_after = 2;
  const auto report =
      fetch_wanted(road_, step(1), wanted_, {.workers = 2, .memory_bytes = 40, .gap_bytes = 0},
                   take_nothing, soon());
  EXPECT_EQ(report.status().code(), StatusCode::kIo);
  EXPECT_LT(road_.calls, 10U);
  EXPECT_EQ(road_.held, 0U);
}

TEST_P(RangeFetcherTest, AFailureToTakeEndsIt) {
  for (std::uint64_t at = 0; at < 100'000; at += 1'000) wanted_[0].ranges.push_back({at, 10});
  const auto refuse = [](std::size_t, std::size_t range, const MappedFile&) -> Status {
    return range == 3 ? error(StatusCode::kMismatch, "damaged") : Status();
  };
  const auto report = fetch_wanted(
      road_, step(1), wanted_, {.workers = 2, .memory_bytes = 40, .gap_bytes = 0}, refuse, soon());
  EXPECT_EQ(report.status().code(), StatusCode::kMismatch);
  EXPECT_LT(road_.calls, 20U);
}

TEST_P(RangeFetcherTest, ARoadThatBringsLessIsNotBelieved) {
  road_.shorter = true;
  wanted_[0].ranges = {{10, 100}};
  const auto report = fetch_wanted(road_, step(1), wanted_, {}, take_nothing, soon());
  EXPECT_EQ(report.status().code(), StatusCode::kCorrupt);
  EXPECT_NE(report.status().message().find("99 bytes came"), std::string::npos);
}

TEST_P(RangeFetcherTest, WhatIsGoneIsNotFound) {
  wanted_[0].ranges = {{10, 100}};
  const auto report = fetch_wanted(road_, step(2), wanted_, {}, take_nothing, soon());
  EXPECT_EQ(report.status().code(), StatusCode::kNotFound);
}

TEST(UnionOfRanges, IsAscendingAndApart) {
  EXPECT_TRUE(union_of({}).empty());
  EXPECT_TRUE(union_of({{5, 0}}).empty());
  const std::vector<ByteRange> expected{{0, 10}, {20, 30}, {60, 1}};
  EXPECT_EQ(union_of({{60, 1}, {20, 10}, {0, 5}, {5, 5}, {30, 20}, {22, 3}, {40, 0}}), expected);
}

}  // namespace
}  // namespace driftless::testing
