// SPDX-License-Identifier: Apache-2.0
// Receivers that hold slices, or only some of the tensors, fetch only what they need of a version.
#include <gtest/gtest.h>

#include "collectives/forwarding_receive_road.h"
#include "collectives/part_ranges.h"
#include "collectives/range_fetcher.h"
#include "support/frame_reseal.h"
#include "support/loopback_job.h"
#include "support/published_run.h"
#include "support/sharded_weights.h"

namespace driftless {
namespace {

using namespace testing;

using std::chrono_literals::operator""s;

// Matrices of a tensor-parallel engine: `up` is cut by rows, `down` by columns.
Weights parallel_weights(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  Weights weights;
  for (int layer = 0; layer < 3; ++layer) {
    weights[concat("layers.", layer, ".up")] = random_tensor(DType::kBF16, {768, 512}, random);
    weights[concat("layers.", layer, ".down")] = random_tensor(DType::kBF16, {512, 768}, random);
  }
  return weights;
}
std::size_t cut_dim(const std::string& name) { return name.ends_with("up") ? 0 : 1; }

// Serves frames that are valid but are not those of the manifest, for example frames of an aborted
// publication of the same number.
class StaleRoad final : public ForwardingReceiveRoad {
 public:
  explicit StaleRoad(std::unique_ptr<ReceiveRoad> road) : ForwardingReceiveRoad(std::move(road)) {}

  Result<MappedFile> fetch_part(const PublicationId& id, const PartReceipt& part,
                                const Deadline& deadline) override {
    DRIFTLESS_ASSIGN_OR_RETURN(const MappedFile good, road_->fetch_part(id, part, deadline));
    auto stale = std::make_shared<std::vector<std::byte>>(good.bytes().begin(), good.bytes().end());
    const auto values = 128 + (get<std::uint64_t>(*stale, 32) + 7) / 8 * 8;
    (*stale)[values] ^= std::byte{1};
    reseal(*stale);
    return MappedFile(part.name, stale, *stale);
  }
  Result<std::vector<MappedFile>> fetch_ranges(const PublicationId& id, const PartReceipt& part,
                                               std::span<const ByteRange> ranges,
                                               const Deadline& deadline) override {
    DRIFTLESS_ASSIGN_OR_RETURN(const MappedFile stale, fetch_part(id, part, deadline));
    return slices(stale, ranges);
  }
};

// Counts what is fetched of parts.
class CountedRoad : public ForwardingReceiveRoad {
 public:
  struct Count {
    std::uint64_t calls = 0, ranges = 0, bytes = 0;
  };
  CountedRoad(std::unique_ptr<ReceiveRoad> road, Count& count)
      : ForwardingReceiveRoad(std::move(road)), count_(count) {}

  Result<MappedFile> fetch_part(const PublicationId& id, const PartReceipt& part,
                                const Deadline& deadline) override {
    add(1, part.size_bytes);
    return road_->fetch_part(id, part, deadline);
  }
  Result<std::vector<MappedFile>> fetch_ranges(const PublicationId& id, const PartReceipt& part,
                                               std::span<const ByteRange> ranges,
                                               const Deadline& deadline) override {
    std::uint64_t bytes = 0;
    for (const ByteRange& range : ranges) bytes += range.size_bytes;
    add(ranges.size(), bytes);
    return road_->fetch_ranges(id, part, ranges, deadline);
  }
  [[nodiscard]] bool fetches_at_once() const override { return false; }

 private:
  void add(std::uint64_t ranges, std::uint64_t bytes) {
    ++count_.calls;
    count_.ranges += ranges;
    count_.bytes += bytes;
  }
  Count& count_;
};
class BatchingRoad final : public CountedRoad {
 public:
  using CountedRoad::CountedRoad;
  [[nodiscard]] bool batches_ranges() const override { return true; }
};

// Adds what a rank holds of a tensor.
using Holds = std::function<void(RankWeights& held, const TensorSpec& spec, std::uint32_t tensor,
                                 std::mt19937_64& random)>;

// Part `rank` of `ranks` of a matrix.
void hold_slice(RankWeights& held, const TensorSpec& spec, std::uint32_t tensor, std::uint32_t rank,
                std::uint32_t ranks, std::mt19937_64& random) {
  const std::uint64_t rows = spec.shape[0], columns = spec.shape[1];
  if (cut_dim(spec.name) == 0) {
    held.add(tensor, rows * rank / ranks, rows / ranks, 0, columns, random);
  } else {
    held.add(tensor, 0, rows, columns * rank / ranks, columns / ranks, random);
  }
}

// Rank `rank`, with its slices in parameters as an engine has them: of 4 ranks, or as `holds` says.
class SlicedRollout {
 public:
  SlicedRollout(LoopbackHub& hub, const Weights& base, std::uint32_t rank)
      : SlicedRollout(hub.receiver(), base, rank) {}
  SlicedRollout(std::unique_ptr<ReceiveRoad> road, const Weights& base, std::uint32_t rank,
                Holds holds = {})
      : road_(std::move(road)), held_(layout_of(base), rank) {
    std::mt19937_64 random(rank);
    const WeightLayout layout = layout_of(base);
    if (!holds) {
      holds = [rank](RankWeights& held, const TensorSpec& spec, std::uint32_t tensor,
                     std::mt19937_64& drawn) { hold_slice(held, spec, tensor, rank, 4, drawn); };
    }
    for (std::uint32_t tensor = 0; tensor < layout.size(); ++tensor) {
      holds(held_, layout[tensor], tensor, random);
    }
    MappedOptions options;
    options.initial = VersionId{};
    options.initial_digest = digest_of(base);
    held_.load(base);
    held_.open(options);
    ReceiverOptions receiver;
    receiver.id = concat("rank", rank);
    receiver.fetch_deadline = 2s;
    auto opened = Receiver::open(receiver, *road_, held_.target(), Deadline::after(1s));
    EXPECT_TRUE(opened.ok()) << opened.status().to_string();
    if (opened.ok()) receiver_ = std::move(*opened);
  }
  Receiver& receiver() { return *receiver_; }
  UpdateReport follow() {
    const auto staged = receiver_->stage(Deadline::after(1s));
    EXPECT_TRUE(staged.ok() && *staged) << staged.status().to_string();
    const auto done = receiver_->commit();
    EXPECT_TRUE(done.ok()) << done.status().to_string();
    return done.ok() ? *done : UpdateReport();
  }
  [[nodiscard]] MappedTarget& target() { return held_.target(); }

 private:
  std::unique_ptr<ReceiveRoad> road_;
  RankWeights held_;
  std::unique_ptr<Receiver> receiver_;
};

// The shares of all ranks add up to the trainer's tensors.
void expect_adds_up(const std::vector<std::unique_ptr<SlicedRollout>>& ranks,
                    const Weights& weights) {
  std::map<std::uint32_t, Digest> sums;
  for (const auto& rank : ranks) {
    for (const TensorShare& share : rank->target().tracked().tensors) {
      sums[share.tensor] += share.digest;
    }
  }
  std::uint32_t tensor = 0;
  for (const auto& [name, bytes] : weights) {
    EXPECT_EQ(sums[tensor++], digest_of({{name, bytes}})) << name;
  }
}

class FetchByNeed : public ::testing::TestWithParam<Encoding> {
 protected:
  [[nodiscard]] PublisherOptions options(bool cut) const {
    PublisherOptions options = quick_options();
    options.encoding = GetParam();
    options.buffer_bytes = 1 << 20;
    for (const auto& [name, tensor] : base_) {
      if (cut) options.cuts.push_back({name, static_cast<std::uint32_t>(cut_dim(name)), 4});
    }
    return options;
  }
  const Weights base_ = quiet(parallel_weights(1));
  LoopbackHub hub_{{}, 1};
};

INSTANTIATE_TEST_SUITE_P(Encodings, FetchByNeed,
                         ::testing::Values(Encoding::kDeltas, Encoding::kIndices,
                                           Encoding::kDeltasZstd, Encoding::kCompact),
                         [](const auto& test) {
                           return std::string(driftless::info(test.param).name);
                         });

// After steps, folded steps and a full version, every rank holds its slices, which add up to the
// trainer's weights, and has fetched little more than a quarter of the bytes.
TEST_P(FetchByNeed, ARankOfFourFetchesAQuarterOfWhatIsCutToItsSlices) {
  Trainer trainer(hub_, 1, options(true), base_);
  expect_ok(trainer.opened());
  std::vector<std::unique_ptr<SlicedRollout>> ranks;
  for (std::uint32_t rank = 0; rank < 4; ++rank) {
    ranks.push_back(std::make_unique<SlicedRollout>(hub_, base_, rank));
  }
  Weights weights = base_;
  for (const int step : {1, 2, 3, 4}) {
    for (int folded = 0; folded < (step == 2 ? 3 : 1); ++folded) {
      const auto seed = static_cast<std::uint64_t>(10 * step + folded);
      weights = step == 3 ? quiet(parallel_weights(99)) : changed_weights(weights, seed, 0.1);
      expect_ok(trainer.publish(weights));
    }
    for (const auto& rank : ranks) {
      const UpdateReport report = rank->follow();
      const std::uint64_t version =
          trainer.report().wire_bytes * (step == 2 ? 3 : 1);  // all steps have about the same size
      EXPECT_LE(report.wire_bytes, version / 4 * 11 / 10 + (64 << 10)) << step;
      EXPECT_LE(report.needed_bytes, version / 4 * 11 / 10) << step;
      EXPECT_GT(report.needed_bytes, version / 5) << step;
      EXPECT_TRUE(rank->target().sweep().ok());
    }
    expect_adds_up(ranks, weights);
  }
}

// Nobody configures the cuts: the publishers derive them from the slices that receivers report. Two
// publisher ranks make the same cuts.
TEST_P(FetchByNeed, TensorsAreCutAsReceiversAnnounceTheirSlices) {
  LoopbackHub hub({}, 2);
  Trainer trainer(hub, 2, options(false), base_);
  expect_ok(trainer.opened());
  std::vector<std::unique_ptr<SlicedRollout>> ranks;
  for (std::uint32_t rank = 0; rank < 4; ++rank) {
    ranks.push_back(std::make_unique<SlicedRollout>(hub, base_, rank));
  }
  Weights weights = base_;
  for (const int step : {1, 2, 3}) {
    const auto seed = static_cast<std::uint64_t>(step);
    weights = step == 2 ? quiet(parallel_weights(99)) : changed_weights(weights, seed, 0.1);
    expect_ok(trainer.publish(weights));
    for (const auto& rank : ranks) {
      const UpdateReport report = rank->follow();
      EXPECT_LE(report.wire_bytes, trainer.report().wire_bytes / 4 * 11 / 10 + (64 << 10)) << step;
      EXPECT_LE(report.needed_bytes, trainer.report().wire_bytes / 4 * 11 / 10) << step;
    }
    expect_adds_up(ranks, weights);
  }
  // A receiver that wants whole tensors still gets them.
  Rollout late(hub, std::nullopt);
  expect_ok(trainer.each([&](unsigned rank) { return trainer.rank(rank).publish_anchor(); }));
  EXPECT_EQ(late.follow().to_string(), "ok");
  EXPECT_TRUE(late.holds(weights));
}

// A tensor without cuts is fetched whole, and then used.
TEST_P(FetchByNeed, BlocksThatAreNotCutAreFetchedWhole) {
  PublisherOptions whole = options(false);
  whole.cut_for_receivers = false;
  Trainer trainer(hub_, 1, whole, base_);
  expect_ok(trainer.opened());
  SlicedRollout rollout(hub_, base_, 1);
  const Weights next = changed_weights(base_, 3, 0.1);
  expect_ok(trainer.publish(next));
  const UpdateReport report = rollout.follow();
  EXPECT_GE(report.wire_bytes, trainer.report().wire_bytes);
  EXPECT_TRUE(rollout.target().sweep().ok());
}

// Versions that were published before any receiver reported slices: a receiver skips those that it
// cannot decode with part of a block, and takes a full version.
TEST_P(FetchByNeed, ALateReceiverGetsAFullVersion) {
  Trainer trainer(hub_, 1, options(false), base_);
  expect_ok(trainer.opened());
  const Weights first = changed_weights(base_, 3, 0.05);
  expect_ok(trainer.publish(first));
  SlicedRollout rollout(hub_, base_, 1);
  if (GetParam() == Encoding::kCompact) {
    const Status found = rollout.receiver().stage(Deadline::after(1s)).status();
    EXPECT_EQ(found.code(), StatusCode::kMismatch) << found.to_string();
    EXPECT_NE(found.message().find("a full version"), std::string::npos) << found.to_string();
    const Status none = rollout.receiver().stage(Deadline::after(1s)).status();
    EXPECT_EQ(none.code(), StatusCode::kWrongBase) << none.to_string();
  }
  const Weights second = changed_weights(first, 4, 0.05);
  expect_ok(trainer.publish(second));
  const UpdateReport report = rollout.follow();
  EXPECT_EQ(report.version, 2U);
  EXPECT_EQ(report.anchor, GetParam() == Encoding::kCompact);
  EXPECT_TRUE(rollout.target().sweep().ok());
  expect_ok(trainer.publish(changed_weights(second, 5, 0.05)));
  EXPECT_EQ(rollout.follow().version, 3U);
  EXPECT_TRUE(rollout.target().sweep().ok());
}

// The manifest proves every byte that is used, also in a frame that is fetched in ranges.
TEST_P(FetchByNeed, FramesOfAnotherPublicationAreRefused) {
  if (GetParam() == Encoding::kDeltasZstd) GTEST_SKIP() << "a flipped byte is no zstd frame";
  Trainer trainer(hub_, 1, options(true), base_);
  expect_ok(trainer.opened());
  SlicedRollout rollout(std::make_unique<StaleRoad>(hub_.receiver()), base_, 0);
  expect_ok(trainer.publish(changed_weights(base_, 3, 0.1)));
  const auto staged = rollout.receiver().stage(Deadline::after(1s));
  ASSERT_FALSE(staged.ok());
  EXPECT_EQ(staged.status().code(), StatusCode::kCorrupt) << staged.status().to_string();
  EXPECT_NE(staged.status().message().find("the manifest says"), std::string::npos)
      << staged.status().to_string();
}

// A rank that holds only some tensors fetches only these.
TEST_P(FetchByNeed, TensorsOfOthersAreNotFetched) {
  Trainer trainer(hub_, 1, options(false), base_);
  expect_ok(trainer.opened());
  Weights held = base_;
  const WeightLayout layout = layout_of(base_);
  std::vector<std::byte*> data = pointers(held);
  for (std::size_t i = 1; i < data.size(); ++i) data[i] = nullptr;
  const auto target = make_memory_target(layout, data, VersionId{}, 2);
  ASSERT_TRUE(target.ok());
  const auto road = hub_.receiver();
  const auto receiver = Receiver::open({}, *road, **target, Deadline::after(1s));
  ASSERT_TRUE(receiver.ok()) << receiver.status().to_string();
  for (const double share : {0.1, 2.0}) {  // a delta, and a full version
    const Weights next = changed_weights(base_, 3, share);
    expect_ok(trainer.publish(next));
    const auto staged = (*receiver)->stage(Deadline::after(1s));
    ASSERT_TRUE(staged.ok() && *staged) << staged.status().to_string();
    const auto report = (*receiver)->commit();
    ASSERT_TRUE(report.ok()) << report.status().to_string();
    EXPECT_LE(report->needed_bytes, trainer.report().wire_bytes / 5);
    EXPECT_EQ(held.begin()->second.bytes, next.begin()->second.bytes);
  }
}

// Small experts, of whose tensors a rank of two holds every second one; `cut`: beside matrices that
// are cut in two.
Weights expert_weights(std::uint64_t seed, bool cut) {
  std::mt19937_64 random(seed);
  Weights weights;
  for (int expert = 0; expert < 24; ++expert) {
    for (const char* matrix : {"down", "gate", "up"}) {
      weights[concat("experts.", 100 + expert, ".", matrix)] =
          random_tensor(DType::kBF16, {128, 64}, random);
    }
  }
  for (const char* matrix : {"k.up", "o.down", "q.up"}) {
    if (cut) weights[concat("layer.", matrix)] = random_tensor(DType::kBF16, {256, 128}, random);
  }
  return quiet(std::move(weights));
}
void hold_experts(RankWeights& held, const TensorSpec& spec, std::uint32_t tensor,
                  std::uint32_t rank, std::mt19937_64& random) {
  if (!spec.name.starts_with("experts.")) return hold_slice(held, spec, tensor, rank, 2, random);
  if (tensor % 2 == rank) held.add(tensor, 0, spec.shape[0], 0, spec.shape[1], random);
}

// A road that batches ranges brings little beside the blocks that a rank needs: the gaps between
// them are not fetched, nor is a frame's end beyond its table, nor a large table twice. Other roads
// bring the gaps, with few ranges. Of two publisher ranks each writes the frames of one rollout.
TEST_P(FetchByNeed, WhatIsFetchedBesideSmallBlocksDependsOnTheRoad) {
  for (const unsigned publishers : {1U, 2U}) {
    SCOPED_TRACE(publishers);
    const bool cut = publishers == 1;
    const Weights base = expert_weights(1, cut);
    LoopbackHub hub({}, publishers);
    PublisherOptions options = quick_options();
    options.encoding = GetParam();
    options.buffer_bytes = 1 << 20;
    Trainer trainer(hub, publishers, options, base);
    expect_ok(trainer.opened());
    std::array<CountedRoad::Count, 4> counts;
    std::vector<std::unique_ptr<SlicedRollout>> ranks;
    for (std::uint32_t i = 0; i < counts.size(); ++i) {
      std::unique_ptr<ReceiveRoad> road;
      if (i < 2) road = std::make_unique<BatchingRoad>(hub.receiver(), counts[i]);
      if (i >= 2) road = std::make_unique<CountedRoad>(hub.receiver(), counts[i]);
      ranks.push_back(std::make_unique<SlicedRollout>(
          std::move(road), base, i,
          [rank = i % 2](RankWeights& held, const TensorSpec& spec, std::uint32_t tensor,
                         std::mt19937_64& random) {
            hold_experts(held, spec, tensor, rank, random);
          }));
    }
    Weights weights = base;
    for (const int step : {1, 2, 3}) {
      weights = step == 2 ? expert_weights(99, cut)
                          : changed_weights(weights, static_cast<std::uint64_t>(step), 0.04);
      expect_ok(trainer.publish(weights));
      for (std::uint32_t i = 0; i < ranks.size(); ++i) {
        counts[i] = {};
        const UpdateReport report = ranks[i]->follow();
        const auto needed = static_cast<double>(report.needed_bytes);
        const auto fetched = static_cast<double>(counts[i].bytes);
        EXPECT_GE(fetched, needed) << step;
        if (i < 2) {
          EXPECT_LE(fetched, needed * 1.05) << step;
          EXPECT_LE(fetched, static_cast<double>(trainer.report().wire_bytes) * 0.6) << step;
        } else if (step != 2) {  // a full version has a frame for each expert
          EXPECT_LE(counts[i].ranges, 24U) << step;
        }
        RecordProperty(concat("publishers", publishers, "step", step, "rank", i),
                       concat(counts[i].calls, " calls, ", counts[i].ranges, " ranges, ",
                              counts[i].bytes, " of ", report.needed_bytes));
        EXPECT_TRUE(ranks[i]->target().sweep().ok());
      }
    }
  }
}

}  // namespace
}  // namespace driftless
