// SPDX-License-Identifier: Apache-2.0
// Parts that are fetched at the same time, and frames and flush files that several threads read.
// Damage is named as if one thread had read them, and nothing of it is staged.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <tuple>

#include "collectives/forwarding_receive_road.h"
#include "plugin/receive/receiver.h"
#include "plugin/targets/version_source.h"
#include "support/published_run.h"

namespace driftless::testing {
namespace {

using namespace std::chrono_literals;

class ParallelReading : public ::testing::TestWithParam<std::tuple<DirectoryLayout, Encoding>> {
 protected:
  // The step with some damaged parts, whose hashes in the manifest match the damage.
  [[nodiscard]] Publication damaged(std::span<const std::size_t> parts) {
    const auto& [layout, encoding] = GetParam();
    Publication step = run_.step(1, layout, encoding);
    std::size_t number = 0;
    for (auto& [name, bytes] : step.parts) {
      const std::size_t turn = number++;
      if (std::ranges::find(parts, turn) == parts.end()) continue;
      // Damages a frame's first stream, or the positions of a flush file.
      bytes[frames() ? kFrameHeaderBytes + 3 : bytes.size() - 1] ^= std::byte{0x20};
    }
    step.list_parts();
    return step;
  }
  [[nodiscard]] static bool frames() {
    return std::get<DirectoryLayout>(GetParam()) == DirectoryLayout::kFrames;
  }
  Status stage(const Publication& step, unsigned threads, Weights& held) {
    auto target = make_memory_target(run_.layout, pointers(held), VersionId{}, threads);
    DRIFTLESS_RETURN_IF_ERROR(target.status());
    std::vector<FetchedVersion> chain;
    chain.push_back(step.fetched());
    chain.back().memory = memory_;
    return (*target)->stage(std::move(chain)).status();
  }

  PublishedRun run_ = PublishedRun(random_weights(1));
  const std::shared_ptr<KeptMemory> memory_ = std::make_shared<KeptMemory>(64 << 20);
};
INSTANTIATE_TEST_SUITE_P(Parts, ParallelReading,
                         ::testing::Combine(::testing::Values(DirectoryLayout::kFrames,
                                                              DirectoryLayout::kFlush),
                                            ::testing::Values(Encoding::kIndices, Encoding::kDeltas,
                                                              Encoding::kDeltasZstd)));

TEST_P(ParallelReading, StagesWithAnyNumberOfThreads) {
  const Publication step = damaged({});
  ASSERT_GT(step.parts.size(), 4U);
  for (const unsigned threads : {1U, 2U, 16U}) {
    Weights held = run_.weights[0];
    EXPECT_EQ(stage(step, threads, held).to_string(), "ok") << threads;
    EXPECT_TRUE(same(held, run_.weights[0])) << "staging writes nothing";
  }
}

TEST_P(ParallelReading, NamesTheFirstDamagedPart) {
  const std::size_t parts[] = {2, 3, 4};
  const Publication step = damaged(parts);
  ASSERT_GT(step.parts.size(), 4U);
  auto part = step.parts.begin();
  std::advance(part, 2);
  std::string alone;  // the message with one thread
  for (const unsigned threads : {1U, 4U, 16U}) {
    for (int again = 0; again < 5; ++again) {
      Weights held = run_.weights[0];
      const Status staged = stage(step, threads, held);
      EXPECT_EQ(staged.code(), StatusCode::kCorrupt);
      EXPECT_NE(staged.message().find(part->first), std::string::npos) << staged.to_string();
      if (alone.empty()) alone = staged.message();
      EXPECT_EQ(staged.message(), alone) << threads;
      EXPECT_TRUE(same(held, run_.weights[0]));
    }
  }
  if (!frames()) return;
  const Status decoded =
      Frame::decode(part->second, run_.layout, max_frame_body_bytes(run_.layout)).status();
  EXPECT_EQ(alone, concat("version 1/", part->first, ": ", decoded.message()));
}

TEST_P(ParallelReading, RefusesDamageInEachPart) {
  const std::size_t count = damaged({}).parts.size();
  for (std::size_t number = 0; number < count; ++number) {
    const Publication step = damaged(std::span(&number, 1));
    Weights held = run_.weights[0];
    EXPECT_EQ(stage(step, 4, held).code(), StatusCode::kCorrupt) << number;
    EXPECT_TRUE(same(held, run_.weights[0]));
  }
}

// Lets several threads fetch and counts them; parts fail as the test sets.
class CountingRoad final : public ForwardingReceiveRoad {
 public:
  using ForwardingReceiveRoad::ForwardingReceiveRoad;
  std::atomic<int> now = 0, most = 0, calls = 0;
  std::set<std::string> failing;

  Result<MappedFile> fetch_part(const PublicationId& id, const PartReceipt& part,
                                const Deadline& deadline) override {
    ++calls;
    const int turn = ++now;
    for (int seen = most; turn > seen && !most.compare_exchange_weak(seen, turn);) {
    }
    std::this_thread::sleep_for(1ms);
    --now;
    if (failing.contains(part.name)) return error(StatusCode::kIo, "injected for ", part.name);
    return ForwardingReceiveRoad::fetch_part(id, part, deadline);
  }
  [[nodiscard]] bool fetches_at_once() const override { return true; }
};

class ParallelParts : public ::testing::Test {
 protected:
  void open(unsigned read_workers) {
    expect_announcement();
    auto target = make_memory_target(run_.layout, pointers(held_), VersionId{}, 4);
    ASSERT_TRUE(target.ok()) << target.status().to_string();
    target_ = std::move(*target);
    ReceiverOptions options;
    options.fetch_deadline = 300ms;
    options.threads = 4;
    options.read_workers = read_workers;
    auto receiver = Receiver::open(options, road_, *target_, soon());
    ASSERT_TRUE(receiver.ok()) << receiver.status().to_string();
    receiver_ = std::move(*receiver);
  }
  void expect_announcement() {
    const Status status = sender_->announce(run_info_to_json(run_.info()), soon());
    ASSERT_TRUE(status.ok()) << status.to_string();
  }
  static Deadline soon() { return Deadline::after(2s); }

  PublishedRun run_ = PublishedRun(random_weights(1));
  Weights held_ = run_.weights[0];
  LoopbackHub hub_{{}, 1};
  std::unique_ptr<SendRoad> sender_ = hub_.sender(0);
  CountingRoad road_{hub_.receiver()};
  std::unique_ptr<WeightTarget> target_;
  std::unique_ptr<Receiver> receiver_;
};

TEST_F(ParallelParts, AreFetchedAsManyAtATimeAsConfigured) {
  open(3);
  for (std::uint64_t version = 1; version <= 3; ++version) {
    send(*sender_, run_.step(version));
    ASSERT_TRUE(receiver_->stage(soon()).value());
    ASSERT_TRUE(receiver_->commit().ok());
    EXPECT_TRUE(same(held_, run_.weights[version]));
  }
  EXPECT_LE(road_.most, 3);
  EXPECT_GT(road_.most, 1);
}

TEST_F(ParallelParts, TheFirstThatFailsIsNamedAndNothingIsStaged) {
  open(2);
  const Publication step = run_.step(1);
  ASSERT_GT(step.parts.size(), 5U);
  road_.failing = {frame_file_name(0, 1), frame_file_name(0, 2), frame_file_name(0, 3)};
  send(*sender_, step);
  const Status staged = receiver_->stage(soon()).status();
  EXPECT_EQ(staged.code(), StatusCode::kIo);
  EXPECT_NE(staged.message().find(concat("injected for ", frame_file_name(0, 1))),
            std::string::npos)
      << staged.to_string();
  EXPECT_LT(road_.calls, static_cast<int>(step.parts.size())) << "what was left is not fetched";
  EXPECT_EQ(receiver_->commit().status().code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(same(held_, run_.weights[0]));
  road_.failing.clear();
  ASSERT_TRUE(receiver_->stage(soon()).value());
  ASSERT_TRUE(receiver_->commit().ok());
  EXPECT_TRUE(same(held_, run_.weights[1]));
}

}  // namespace
}  // namespace driftless::testing
