// SPDX-License-Identifier: Apache-2.0
// The comparison of a bucket does not wait for the writing of the bucket before it. The road blocks
// every write until the source was asked for the tensors behind the next bucket, which happens only
// if the publisher does both at once. If it does not, the write continues after a short wait, and
// is counted.
#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>
#include <tuple>

#include "plugin/publish/publisher.h"
#include "support/forwarding_send_road.h"
#include "support/loopback_road.h"
#include "support/weight_source.h"
#include "support/weights.h"

namespace driftless {
namespace {

using namespace std::chrono_literals;
using testing::MemorySource;
using testing::Weights;

constexpr std::size_t kTensors = 8;

// Where the source and the road meet. A batch is a tensor, and a tensor is a bucket.
class Meeting {
 public:
  // `lead`: how many batches past its own must have been requested when a part is written.
  explicit Meeting(std::chrono::milliseconds patience, std::size_t lead = 2)
      : patience_(patience), lead_(lead) {}

  void start() {
    const std::scoped_lock lock(mutex_);
    watching_ = true;
    asked_ = parts_ = met_ = missed_ = 0;
  }
  void ask() {
    const std::scoped_lock lock(mutex_);
    ++asked_;
    changed_.notify_all();
  }
  [[nodiscard]] std::size_t open_part() {
    const std::scoped_lock lock(mutex_);
    return parts_++;
  }
  // A bucket is handed over while the next one (batch part + 1) is compared; the comparison of that
  // is complete once batch part + 2 is requested. Whole tensors are handed over with their own
  // batch, so their lead is 1. The last buckets have no batches behind them.
  void write(std::size_t part) {
    std::unique_lock lock(mutex_);
    if (!watching_ || part + lead_ >= kTensors) return;
    const bool met = changed_.wait_for(lock, patience_, [&] { return asked_ > part + lead_; });
    ++(met ? met_ : missed_);
  }
  [[nodiscard]] std::size_t parts() const { return parts_; }
  [[nodiscard]] std::size_t met() const { return met_; }
  [[nodiscard]] std::size_t missed() const { return missed_; }

 private:
  const std::chrono::milliseconds patience_;
  const std::size_t lead_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool watching_ = false;
  std::size_t asked_ = 0, parts_ = 0, met_ = 0, missed_ = 0;
};

class AskedSource final : public WeightSource {
 public:
  AskedSource(const Weights& weights, Meeting& meeting) : source_(weights, 1), meeting_(meeting) {}
  [[nodiscard]] std::span<const TensorSpec> tensors() const override { return source_.tensors(); }
  [[nodiscard]] Status visit(
      const std::function<Status(std::span<const OfferedTensor>)>& use) override {
    return source_.visit([&](std::span<const OfferedTensor> batch) {
      meeting_.ask();
      return use(batch);
    });
  }

 private:
  MemorySource source_;
  Meeting& meeting_;
};

class HeldPart final : public testing::ForwardingPart {
 public:
  HeldPart(std::unique_ptr<File> file, Meeting& meeting)
      : ForwardingPart(std::move(file)), meeting_(meeting), number_(meeting.open_part()) {}
  Status pwrite(std::uint64_t offset, std::span<const std::byte> bytes) override {
    if (std::exchange(first_, false)) meeting_.write(number_);
    return ForwardingPart::pwrite(offset, bytes);
  }

 private:
  Meeting& meeting_;
  std::size_t number_;
  bool first_ = true;
};

class HoldingRoad final : public testing::ForwardingSendRoad {
 public:
  HoldingRoad(std::unique_ptr<SendRoad> road, Meeting& meeting)
      : ForwardingSendRoad(std::move(road)), meeting_(meeting) {}
  Result<std::unique_ptr<File>> create_part(const std::string& name) override {
    DRIFTLESS_ASSIGN_OR_RETURN(std::unique_ptr<File> file, road_->create_part(name));
    return std::unique_ptr<File>(std::make_unique<HeldPart>(std::move(file), meeting_));
  }

 private:
  Meeting& meeting_;
};

Weights equal_tensors(std::uint64_t seed, std::uint64_t rows) {
  std::mt19937_64 random(seed);
  Weights weights;
  for (std::size_t i = 0; i < kTensors; ++i) {
    weights[concat("layer.", i)] = testing::random_tensor(DType::kBF16, {rows, 64}, random);
  }
  return weights;
}

void publish_once(Meeting& meeting, DirectoryLayout layout, Encoding encoding, bool background) {
  LoopbackHub hub({}, 1);
  HoldingRoad road(hub.sender(0), meeting);
  SoloGroup group;
  PublisherOptions options;
  options.layout = layout;
  options.encoding = encoding;
  options.threads = 2;
  options.background = background;
  // Smaller than the changes of any tensor; for a full version, the size of a tensor.
  options.buffer_bytes = encoding == Encoding::kFull ? 8192 : 256;
  const bool shard = layout == DirectoryLayout::kHfDelta;
  const Weights base = equal_tensors(1, shard ? 65'536 : 64);
  MemorySource offered(base);
  auto publisher = Publisher::open(options, group, road, nullptr, offered);
  ASSERT_TRUE(publisher.ok()) << publisher.status().to_string();
  AskedSource source(testing::changed_weights(base, 2, 0.1), meeting);
  meeting.start();
  const auto report = (*publisher)->publish(source);
  ASSERT_TRUE(report.ok()) << report.status().to_string();
  ASSERT_EQ(report->encoding, encoding);  // not sent in full by itself
}

using Case = std::tuple<DirectoryLayout, Encoding>;
class PublisherOverlap : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Layouts, PublisherOverlap,
                         ::testing::Values(Case{DirectoryLayout::kFrames, Encoding::kDeltas},
                                           Case{DirectoryLayout::kFrames, Encoding::kDeltasZstd},
                                           Case{DirectoryLayout::kFrames, Encoding::kCompact},
                                           Case{DirectoryLayout::kFrames, Encoding::kFull},
                                           Case{DirectoryLayout::kFlush, Encoding::kDeltasZstd}));
std::size_t lead_of(Encoding encoding) { return encoding == Encoding::kFull ? 1 : 2; }

// Every tensor is a part of its own.
TEST_P(PublisherOverlap, ABucketIsComparedWhileTheOneBeforeIsWritten) {
  const auto [layout, encoding] = GetParam();
  const std::size_t lead = lead_of(encoding);
  Meeting meeting(20s, lead);  // never reached if the two overlap
  publish_once(meeting, layout, encoding, true);
  EXPECT_EQ(meeting.met(), kTensors - lead);
  EXPECT_EQ(meeting.missed(), 0U);
}

TEST_P(PublisherOverlap, WithoutABackgroundEachWaitsForTheOther) {
  const auto [layout, encoding] = GetParam();
  const std::size_t lead = lead_of(encoding);
  Meeting meeting(20ms, lead);
  publish_once(meeting, layout, encoding, false);
  EXPECT_EQ(meeting.met(), 0U);
  EXPECT_EQ(meeting.missed(), kTensors - lead);
}

// A shard is one part; the first tensor fills its writer's buffer. The version's index is a second
// part, and comes last.
class ShardOverlap : public ::testing::TestWithParam<Encoding> {};
INSTANTIATE_TEST_SUITE_P(Encodings, ShardOverlap,
                         ::testing::Values(Encoding::kXor, Encoding::kOverwrite));

TEST_P(ShardOverlap, ATensorIsComparedWhileTheOneBeforeIsWritten) {
  Meeting meeting(20s);
  publish_once(meeting, DirectoryLayout::kHfDelta, GetParam(), true);
  EXPECT_EQ(meeting.met(), 2U);
  EXPECT_EQ(meeting.missed(), 0U);
}

TEST_P(ShardOverlap, WithoutABackgroundEachWaitsForTheOther) {
  Meeting meeting(20ms);
  publish_once(meeting, DirectoryLayout::kHfDelta, GetParam(), false);
  EXPECT_EQ(meeting.met(), 1U);
  EXPECT_EQ(meeting.missed(), 1U);
}

}  // namespace
}  // namespace driftless
