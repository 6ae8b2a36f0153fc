// SPDX-License-Identifier: Apache-2.0
// Several threads write frames and flush files if the road takes several parts at a time. The
// version is the same, the parts are created in order, memory is bounded, and a part that fails
// makes the version fail.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <tuple>

#include "collectives/shared_fs/shared_fs_road.h"
#include "plugin/publish/publisher.h"
#include "plugin/receive/receiver.h"
#include "support/forwarding_send_road.h"
#include "support/published_run.h"
#include "support/temp_dir.h"
#include "support/weight_source.h"

namespace driftless::testing {
namespace {

using namespace std::chrono_literals;

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

// The calls that the parts of a road received.
struct Seen {
  std::atomic<int> writing = 0, most_writing = 0, open = 0, most_open = 0, creating = 0;
  std::atomic<std::uint64_t> largest = 0;
  std::atomic<bool> meet = false;  // a write waits until another one runs beside it
  std::vector<std::string> created;
  std::set<std::string> failing;  // parts whose sync() fails
};

void raise_to(auto& most, auto value) {
  for (auto seen = most.load(); value > seen && !most.compare_exchange_weak(seen, value);) {
  }
}

class SeenPart final : public ForwardingPart {
 public:
  SeenPart(std::unique_ptr<File> file, std::string name, Seen& seen)
      : ForwardingPart(std::move(file)), name_(std::move(name)), seen_(seen) {
    raise_to(seen_.most_open, ++seen_.open);
  }
  ~SeenPart() override { --seen_.open; }
  Status pwrite(std::uint64_t offset, std::span<const std::byte> bytes) override {
    raise_to(seen_.most_writing, ++seen_.writing);
    raise_to(seen_.largest, offset + bytes.size());
    const auto latest = std::chrono::steady_clock::now() + 10s;
    while (seen_.meet && seen_.most_writing < 2 && std::chrono::steady_clock::now() < latest) {
      std::this_thread::sleep_for(200us);
    }
    const Status written = ForwardingPart::pwrite(offset, bytes);
    --seen_.writing;
    return written;
  }
  Status sync() override {
    if (seen_.failing.contains(name_)) return error(StatusCode::kIo, "injected for ", name_);
    return ForwardingPart::sync();
  }

 private:
  std::string name_;
  Seen& seen_;
};

class SeenRoad final : public ForwardingSendRoad {
 public:
  SeenRoad(std::unique_ptr<SendRoad> road, bool at_once)
      : ForwardingSendRoad(std::move(road)), at_once_(at_once) {}
  Seen seen;

  Result<std::unique_ptr<File>> create_part(const std::string& name) override {
    EXPECT_EQ(++seen.creating, 1) << "one thread at a time creates parts";
    seen.created.push_back(name);
    Result<std::unique_ptr<File>> file = road_->create_part(name);
    --seen.creating;
    if (!file.ok()) return file.status();
    return std::unique_ptr<File>(std::make_unique<SeenPart>(std::move(*file), name, seen));
  }
  [[nodiscard]] bool writes_at_once() const override { return at_once_; }

 private:
  const bool at_once_;
};

Weights large_weights() {
  std::mt19937_64 random(7);
  Weights weights;
  for (int i = 0; i < 6; ++i) {
    weights[concat("layer.", i)] = random_tensor(DType::kBF16, {1024, 1024}, random);
  }
  return weights;
}

class PublisherWriters : public ::testing::TestWithParam<std::tuple<DirectoryLayout, Encoding>> {
 protected:
  void open(bool at_once, unsigned threads = 8) {
    options_.dir = dir_.path() + "/road";
    auto road = make_shared_fs_sender(posix_file_system(), options_, 0, 1);
    ASSERT_TRUE(road.ok()) << road.status().to_string();
    EXPECT_TRUE((*road)->writes_at_once()) << "a directory with a file for each part";
    road_ = std::make_unique<SeenRoad>(std::move(*road), at_once);
    PublisherOptions options;
    options.layout = std::get<DirectoryLayout>(GetParam());
    options.encoding = std::get<Encoding>(GetParam());
    options.threads = threads;
    options.buffer_bytes = 8 * kMiB;
    options.full_above_density = 1.1;
    MemorySource base(base_);
    auto made = Publisher::open(options, group_, *road_, nullptr, base);
    ASSERT_TRUE(made.ok()) << made.status().to_string();
    publisher_ = std::move(*made);
    auto receive = make_shared_fs_receiver(posix_file_system(), options_);
    ASSERT_TRUE(receive.ok()) << receive.status().to_string();
    receive_ = std::move(*receive);
    auto target = make_memory_target(layout_of(base_), pointers(held_), VersionId{}, 4);
    ASSERT_TRUE(target.ok()) << target.status().to_string();
    target_ = std::move(*target);
    auto receiver = Receiver::open({}, *receive_, *target_, soon());
    ASSERT_TRUE(receiver.ok()) << receiver.status().to_string();
    receiver_ = std::move(*receiver);
  }
  Result<PublishReport> publish(const Weights& weights) {
    road_->seen.created.clear();
    MemorySource source(weights);
    return publisher_->publish(source);
  }
  void expect_followed(const Weights& weights) {
    const Result<bool> staged = receiver_->stage(soon());
    ASSERT_TRUE(staged.ok() && *staged) << staged.status().to_string();
    const auto committed = receiver_->commit();
    ASSERT_TRUE(committed.ok()) << committed.status().to_string();
    EXPECT_TRUE(same(held_, weights));
  }
  static Deadline soon() { return Deadline::after(20s); }
  static bool flush() { return std::get<DirectoryLayout>(GetParam()) == DirectoryLayout::kFlush; }
  static std::string name_of(std::uint32_t part) {
    return flush() ? flush_file_name(0, part) : frame_file_name(0, part);
  }

  const TempDir dir_{TempDir::Where::kMemory};
  const Weights base_ = large_weights();
  Weights held_ = base_;
  SharedFsOptions options_;
  SoloGroup group_;
  std::unique_ptr<SeenRoad> road_;
  std::unique_ptr<Publisher> publisher_;
  std::unique_ptr<ReceiveRoad> receive_;
  std::unique_ptr<WeightTarget> target_;
  std::unique_ptr<Receiver> receiver_;
};
INSTANTIATE_TEST_SUITE_P(Parts, PublisherWriters,
                         ::testing::Combine(::testing::Values(DirectoryLayout::kFrames,
                                                              DirectoryLayout::kFlush),
                                            ::testing::Values(Encoding::kIndices, Encoding::kDeltas,
                                                              Encoding::kDeltasZstd)));

TEST_P(PublisherWriters, WriteTheVersionThatOneWouldWrite) {
  open(true);
  road_->seen.meet = true;
  Weights weights = base_;
  for (std::uint64_t version = 1; version <= 3; ++version) {
    weights = changed_weights(weights, version, 0.3);
    const auto published = publish(weights);
    ASSERT_TRUE(published.ok()) << published.status().to_string();
    EXPECT_LE(published->stages.send_ms, published->process_ms);
    expect_followed(weights);
    const std::vector<std::string>& created = road_->seen.created;
    ASSERT_GE(created.size(), 3U) << "too few to be written side by side";
    for (std::uint32_t i = 0; i < created.size(); ++i) {
      EXPECT_EQ(created[i], name_of(i));
    }
  }
  EXPECT_GT(road_->seen.most_writing, 1);
  EXPECT_LE(road_->seen.most_open, 4);
  EXPECT_EQ(road_->seen.open, 0);
  // Buckets for four writers, the one being filled, and as many encoded ones: three times
  // buffer_bytes in all. In addition, a piece of a tensor and a table.
  EXPECT_LE(road_->seen.largest, 8 * kMiB * 3 / 10 + 3 * kMiB / 2);
}

TEST_P(PublisherWriters, AreOneWhereTheRoadTakesOnePartAtATime) {
  open(false);
  const Weights weights = changed_weights(base_, 1, 0.3);
  const auto published = publish(weights);
  ASSERT_TRUE(published.ok()) << published.status().to_string();
  expect_followed(weights);
  EXPECT_EQ(road_->seen.most_open, 1);
  EXPECT_EQ(road_->seen.most_writing, 1);
}

TEST_P(PublisherWriters, AreOneForFewThreads) {
  open(true, 2);
  const Weights weights = changed_weights(base_, 1, 0.3);
  ASSERT_TRUE(publish(weights).ok());
  expect_followed(weights);
  EXPECT_EQ(road_->seen.most_open, 1);
}

TEST_P(PublisherWriters, APartThatFailsFailsTheVersionAndNoOtherIsBegunForIt) {
  open(true);
  const Weights weights = changed_weights(base_, 1, 0.3);
  road_->seen.failing = {name_of(1), name_of(2)};
  const auto failed = publish(weights);
  ASSERT_FALSE(failed.ok());
  EXPECT_NE(failed.status().message().find(concat("injected for ", name_of(1))), std::string::npos)
      << failed.status().to_string();
  EXPECT_EQ(road_->seen.open, 0) << "a thread still writes";
  EXPECT_FALSE(receiver_->stage(Deadline::after(50ms)).value());
  EXPECT_TRUE(same(held_, base_));
  road_->seen.failing.clear();
  const auto published = publish(weights);
  ASSERT_TRUE(published.ok()) << published.status().to_string();
  expect_followed(weights);
}

}  // namespace
}  // namespace driftless::testing
