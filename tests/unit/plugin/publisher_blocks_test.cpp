// SPDX-License-Identifier: Apache-2.0
// Tensors that several ranks publish in blocks, and blocks that are cut further.
#include <gtest/gtest.h>

#include <cstring>
#include "collectives/forwarding_receive_road.h"
#include "formats/receiver_needs.h"
#include "plugin/publish/block_splitter.h"
#include "plugin/receive/anchor_offer.h"
#include "support/loopback_job.h"
#include "support/published_run.h"

namespace driftless {
namespace {

using namespace testing;

using std::chrono_literals::operator""s;

struct BlockWay {
  unsigned ranks;
  Encoding encoding;
  unsigned cuts;
  unsigned pieces = 1;
  bool snapshot = true;
};

class PublishedBlocks : public ::testing::TestWithParam<BlockWay> {
 protected:
  PublishedBlocks() {
    Trainer::offer_as([](const Weights& weights, unsigned rank) {
      return in_blocks(weights, rank, GetParam().ranks, GetParam().pieces);
    });
    options_.encoding = GetParam().encoding;
    options_.keep_snapshot = GetParam().snapshot;
    if (GetParam().cuts == 0) return;
    options_.cuts = {{"model.embed.weight", 1, GetParam().cuts},
                     {"model.layers.0.up.weight", 0, GetParam().cuts},
                     {"model.layers.0.scale", 1, GetParam().cuts},
                     {"model.norm.weight", 0, GetParam().cuts}};
  }
  ~PublishedBlocks() override { Trainer::offer_as({}); }

  PublisherOptions options_ = quick_options();
  LoopbackHub hub_{{}, GetParam().ranks};
  const Weights base_ = random_weights(1);
};

// Records for each offered part whether its bytes are right.
class OfferedRoad final : public ForwardingReceiveRoad {
 public:
  using ForwardingReceiveRoad::ForwardingReceiveRoad;
  [[nodiscard]] bool serves_others() const override { return true; }
  Result<std::uint64_t> offer_part(const PublicationId& id, const PartReceipt& part,
                                   std::span<const std::byte> bytes,
                                   const Deadline& deadline) override {
    DRIFTLESS_ASSIGN_OR_RETURN(const MappedFile sealed, road_->fetch_part(id, part, deadline));
    same[part.name] = std::ranges::equal(sealed.bytes(), bytes);
    return bytes.size();
  }
  std::map<std::string, bool> same;
};

// The offers of a rollout that holds `weights` and claims `version`.
std::map<std::string, bool> offered(LoopbackHub& hub, Weights weights, const VersionId& version) {
  std::vector<std::byte*> data;
  for (auto& [name, tensor] : weights) data.push_back(tensor.bytes.data());
  auto made = make_memory_target(layout_of(weights), data, version, 1);
  EXPECT_TRUE(made.ok()) << made.status().to_string();
  const std::unique_ptr<MappedTarget> target = std::move(*made);
  OfferedRoad road(std::shared_ptr<ReceiveRoad>(hub.receiver()));
  AnchorOffer offer;
  const Deadline deadline = Deadline::after(10s);
  for (;;) {
    const auto more = offer.offer_next(road, *target, version, deadline);
    EXPECT_TRUE(more.ok()) << more.status().to_string();
    if (!more.ok() || !*more) return road.same;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Ways, PublishedBlocks,
    ::testing::Values(BlockWay{1, Encoding::kDeltas, 4}, BlockWay{1, Encoding::kIndices, 3},
                      BlockWay{2, Encoding::kDeltas, 0}, BlockWay{3, Encoding::kIndices, 0},
                      BlockWay{3, Encoding::kDeltasZstd, 5}, BlockWay{1, Encoding::kDeltas, 0, 2},
                      BlockWay{2, Encoding::kIndices, 0, 3},
                      BlockWay{3, Encoding::kDeltasZstd, 4, 2}, BlockWay{3, Encoding::kCompact, 6},
                      BlockWay{2, Encoding::kCompact, 0, 2},
                      BlockWay{1, Encoding::kDeltas, 0, 1, false},
                      BlockWay{3, Encoding::kIndices, 0, 2, false},
                      BlockWay{2, Encoding::kDeltasZstd, 4, 1, false},
                      BlockWay{3, Encoding::kCompact, 6, 1, false},
                      BlockWay{2, Encoding::kCompact, 0, 2, false}));

// A rollout that followed deltas offers every part, byte for byte, whatever the blocks are. With
// other weights it cannot offer every part, and for a version without an anchor none.
TEST_P(PublishedBlocks, ARolloutPutsAnAnchorTogetherFromItsWeights) {
  options_.anchor_every = 2;
  Trainer trainer(hub_, GetParam().ranks, options_, base_);
  const Weights first = changed_weights(base_, 1, 0.02, "none");
  const Weights second = changed_weights(first, 2, 0.02, "none");
  expect_ok(trainer.publish(first));
  expect_ok(trainer.publish(second));
  ASSERT_TRUE(trainer.report().anchor);
  const Hash128 run = trainer.rank(0).version().run;
  const auto parts = offered(hub_, second, {run, 2});
  EXPECT_GE(parts.size(), GetParam().ranks);
  for (const auto& [name, same] : parts) EXPECT_TRUE(same) << name;

  const auto others = offered(hub_, first, {run, 2});
  EXPECT_EQ(others.size(), parts.size());
  EXPECT_GT(std::ranges::count(others, false, &std::pair<const std::string, bool>::second), 0);
  EXPECT_TRUE(offered(hub_, first, {run, 1}).empty());
  EXPECT_TRUE(offered(hub_, second, {Hash128{1, 2}, 2}).empty());
}

// Steps, one of which is aborted, a dense version, anchors, a restart. Receivers of whole tensors,
// with and without a base, get the trainer's bits and the digest of every tensor.
TEST_P(PublishedBlocks, AreTheTensors) {
  options_.anchor_every = 3;
  const unsigned ranks = GetParam().ranks;
  auto trainer = std::make_unique<Trainer>(hub_, ranks, options_, base_);
  expect_ok(trainer->opened());
  Rollout rollout(hub_, base_);
  Weights weights = base_;
  for (std::uint64_t version = 1; version <= 7; ++version) {
    Weights next = changed_weights(weights, version, 0.02, "none");
    if (version == 2) {
      next = weights;
      next.at("model.embed.weight").bytes[10'000] ^= std::byte{1};  // in a block of one rank
    }
    if (version == 4) {
      trainer->road(ranks - 1).arm(RoadFault::kFlush);
      for (const Status& status : trainer->publish(changed_weights(weights, 44, 0.02, "none"))) {
        ASSERT_FALSE(status.ok());
      }
    }
    if (version == 5) next = random_weights(9);  // dense
    if (version == 6) {
      trainer.reset();
      trainer = std::make_unique<Trainer>(hub_, ranks, options_, base_);
      expect_ok(trainer->opened());
      ASSERT_TRUE(trainer->rank(0).resumed());
    }
    expect_ok(trainer->publish(next));
    ASSERT_EQ(rollout.follow().to_string(), "ok");
    ASSERT_TRUE(rollout.holds(next)) << version;
    weights = next;
  }
  Rollout late(hub_, std::nullopt);
  ASSERT_EQ(late.follow().to_string(), "ok");
  EXPECT_TRUE(late.holds(weights));
}

TEST_P(PublishedBlocks, ReachACheckpoint) {
  Trainer trainer(hub_, GetParam().ranks, options_, base_);
  expect_ok(trainer.opened());
  const TempDir dir;
  write_checkpoint(dir.file("base"), base_, 2);
  const auto target = make_checkpoint_target(posix_file_system(), dir.file("base"), 2);
  ASSERT_TRUE(target.ok()) << target.status().to_string();
  const auto road = hub_.receiver();
  const auto receiver = Receiver::open({}, *road, **target, Deadline::after(1s));
  ASSERT_TRUE(receiver.ok()) << receiver.status().to_string();
  const Weights next = changed_weights(base_, 3, 0.02, "none"), dense = random_weights(9);
  for (const Weights& weights : {next, dense}) {
    expect_ok(trainer.publish(weights));
    const auto staged = (*receiver)->stage(Deadline::after(1s));
    ASSERT_TRUE(staged.ok() && *staged) << staged.status().to_string();
    const auto done = (*receiver)->commit();
    ASSERT_TRUE(done.ok()) << done.status().to_string();
    EXPECT_EQ((*target)->state().digest, digest_of(weights));
  }
}

class OfferedBlocks : public ::testing::Test {
 protected:
  ~OfferedBlocks() override { Trainer::offer_as({}); }
  // Ranks 0 and 1 offer these boxes of a matrix.
  std::vector<Status> open(const TensorBox& first, const TensorBox& second,
                           const PublisherOptions& options = quick_options()) {
    Trainer::offer_as([&](const Weights& weights, unsigned rank) {
      MemorySource source({}, 2);
      const std::string name = "model.embed.weight";
      source.add(name, weights.at(name), rank == 0 ? first : second);
      return source;
    });
    LoopbackHub hub({}, 2);
    return Trainer(hub, 2, options, random_weights(1)).opened();
  }
  static void expect_refused(const std::vector<Status>& statuses, StatusCode code,
                             const std::string& words) {
    for (const Status& status : statuses) {
      EXPECT_EQ(status.code(), code) << status.to_string();
      EXPECT_NE(status.message().find(words), std::string::npos) << status.message();
    }
  }
};

TEST_F(OfferedBlocks, AGapOrAnOverlapIsRefusedByNameAndOffset) {
  expect_ok(open({{0, 0}, {256, 20}}, {{0, 20}, {256, 28}}));
  expect_refused(open({{0, 0}, {256, 20}}, {{0, 24}, {256, 24}}), StatusCode::kWrongLayout,
                 "tensor 'model.embed.weight' at [0, 20] is in none of the 2 blocks");
  expect_refused(open({{0, 0}, {256, 20}}, {{16, 12}, {240, 36}}), StatusCode::kWrongLayout,
                 "tensor 'model.embed.weight' at [16, 12] is in two blocks");
  expect_refused(open({}, {{0, 0}, {256, 20}}), StatusCode::kWrongLayout, "in two blocks");
  expect_refused(open({{0, 0}, {256, 20}}, {{0, 20}, {256, 29}}), StatusCode::kCorrupt,
                 "dimension 1, expected one or more inside its length 48");
}

// One rank may offer several blocks of a tensor. If other ranks offer some of them, only these are
// left out.
TEST_F(OfferedBlocks, SeveralOfARankAreLookedAtOneByOne) {
  const auto open_all = [&](const std::vector<std::vector<TensorBox>>& boxes) {
    Trainer::offer_as([&](const Weights& weights, unsigned rank) {
      MemorySource source({}, 2);
      const std::string name = "model.embed.weight";
      for (const TensorBox& box : boxes[rank]) source.add(name, weights.at(name), box);
      return source;
    });
    LoopbackHub hub({}, 2);
    Trainer trainer(hub, 2, quick_options(), random_weights(1));
    std::vector<Status> statuses = trainer.opened();
    if (!statuses[0].ok()) return statuses;
    const Weights all = random_weights(1);
    const Weights base{{"model.embed.weight", all.at("model.embed.weight")}};
    const Weights next = changed_weights(base, 3, 0.02, "none");
    Rollout rollout(hub, base);
    statuses = trainer.publish(next);
    EXPECT_EQ(rollout.follow().to_string(), "ok");
    EXPECT_TRUE(rollout.holds(next));
    return statuses;
  };
  const TensorBox top{{0, 0}, {100, 48}}, left{{100, 0}, {156, 20}}, right{{100, 20}, {156, 28}};
  expect_ok(open_all({{right, top}, {left}}));
  expect_ok(open_all({{top}, {left, top, right}}));
  expect_ok(open_all({{top, top, left}, {right}}));
  expect_refused(open_all({{top, right}, {}}), StatusCode::kWrongLayout,
                 "tensor 'model.embed.weight' at [100, 0] is in none of the 2 blocks");
  expect_refused(open_all({{top, left, {{90, 20}, {166, 28}}}, {}}), StatusCode::kWrongLayout,
                 "tensor 'model.embed.weight' at [90, 20] is in two blocks");
}

TEST_F(OfferedBlocks, OfWhichTwoRanksHaveTheSameAreTheLowerRanks) {
  expect_refused(open({{0, 0}, {256, 20}}, {{0, 0}, {256, 20}}), StatusCode::kWrongLayout,
                 "at [0, 20] is in none of the 1 blocks");
  expect_ok(open({{0, 0}, {256, 48}}, {}));  // the box is the whole tensor
}

struct WholeWay {
  DirectoryLayout layout;
  Encoding encoding;
  unsigned pieces = 1;
  bool snapshot = true;
};
class MirroredBlocks : public ::testing::TestWithParam<WholeWay> {};
INSTANTIATE_TEST_SUITE_P(
    Ways, MirroredBlocks,
    ::testing::Values(WholeWay{DirectoryLayout::kHfDelta, Encoding::kXor},
                      WholeWay{DirectoryLayout::kHfDelta, Encoding::kOverwrite},
                      WholeWay{DirectoryLayout::kFlush, Encoding::kDeltas},
                      WholeWay{DirectoryLayout::kFlush, Encoding::kDeltasZstd},
                      WholeWay{DirectoryLayout::kHfDelta, Encoding::kXor, 2},
                      WholeWay{DirectoryLayout::kFlush, Encoding::kDeltas, 2},
                      WholeWay{DirectoryLayout::kHfDelta, Encoding::kXor, 2, false},
                      WholeWay{DirectoryLayout::kHfDelta, Encoding::kOverwrite, 1, false},
                      WholeWay{DirectoryLayout::kFlush, Encoding::kDeltasZstd, 2, false}));

// If the layout has whole tensors, the leader's mirror provides them, through steps, an aborted
// one, a dense one, anchors and a restart.
TEST_P(MirroredBlocks, AreWholeTensorsForOthers) {
  constexpr unsigned kRanks = 3;
  Trainer::offer_as([](const Weights& weights, unsigned rank) {
    return in_blocks(weights, rank, kRanks, GetParam().pieces);
  });
  PublisherOptions options = quick_options();
  options.layout = GetParam().layout;
  options.encoding = GetParam().encoding;
  options.keep_snapshot = GetParam().snapshot;
  options.anchor_every = 6;
  LoopbackHub hub({}, kRanks);
  const Weights base = random_weights(1);
  auto trainer = std::make_unique<Trainer>(hub, kRanks, options, base);
  expect_ok(trainer->opened());
  const std::vector<std::string>& notes = trainer->rank(0).notes();
  EXPECT_TRUE(std::ranges::any_of(notes, [](const std::string& note) {
    return note.find("keeps a mirror of the 3") != std::string::npos;
  }));
  Rollout rollout(hub, base);
  Weights weights = base;
  for (std::uint64_t version = 1; version <= 7; ++version) {
    Weights next = changed_weights(weights, version, 0.02, "none");
    if (version == 2) {
      next = weights;
      next.at("model.embed.weight").bytes[10'000] ^= std::byte{1};  // in a block of one rank
    }
    if (version == 3) {
      trainer->road(kRanks - 1).arm(RoadFault::kFlush);
      for (const Status& status : trainer->publish(changed_weights(weights, 44, 0.02, "none"))) {
        EXPECT_FALSE(status.ok());
      }
    }
    if (version == 5) next = random_weights(9);  // dense
    if (version == 4 || version == 6) {
      trainer.reset();
      trainer = std::make_unique<Trainer>(hub, kRanks, options, base);
      expect_ok(trainer->opened());
    }
    expect_ok(trainer->publish(next));
    EXPECT_EQ(trainer->report().mirror_bytes, 256U * 48 * 2 + 64 * 96 * 2 + 64 * 31);
    ASSERT_EQ(rollout.follow().to_string(), "ok") << version;
    ASSERT_TRUE(rollout.holds(next)) << version;
    weights = next;
  }
  Rollout late(hub, std::nullopt);
  EXPECT_EQ(late.follow().to_string(), "ok");
  EXPECT_TRUE(late.holds(weights));
  Trainer::offer_as({});
}

// Ranks that own other tensors get the error at once, too.
TEST(Cuts, ThatCannotBeAreRefusedByAllRanksByName) {
  const auto refused = [](std::vector<TensorCut> cuts, StatusCode code, const std::string& words,
                          DirectoryLayout layout = DirectoryLayout::kFrames) {
    PublisherOptions options = quick_options();
    options.layout = layout;
    if (layout == DirectoryLayout::kHfDelta) options.encoding = Encoding::kXor;
    options.cuts = std::move(cuts);
    LoopbackHub hub({}, 2);
    const auto start = std::chrono::steady_clock::now();
    for (const Status& status : Trainer(hub, 2, options, random_weights(1)).opened()) {
      EXPECT_EQ(status.code(), code) << status.to_string();
      EXPECT_NE(status.message().find(words), std::string::npos) << status.message();
    }
    EXPECT_LT(std::chrono::steady_clock::now() - start, 3s) << words;
  };
  for (const char* const name : {"model.embed.weight", "model.layers.0.up.weight"}) {
    refused({{name, 2, 4}}, StatusCode::kInvalidArgument, "cannot be cut along dimension 2");
    refused({{name, 0, 4}}, StatusCode::kUnsupported, "cuts", DirectoryLayout::kHfDelta);
    refused({{name, 0, 4}}, StatusCode::kUnsupported, "cuts", DirectoryLayout::kFlush);
  }
  refused({{"model.layers.0.up", 0, 4}}, StatusCode::kInvalidArgument, "'model.layers.0.up'");
  refused({{"model.norm.weight", 0, 2}, {"model.norm.weight", 0, 4}}, StatusCode::kInvalidArgument,
          "two cuts");
}

// If a receiver reads fewer encodings, the publisher switches to one that all read. If there is
// none, it names that receiver.
TEST(Capabilities, APublisherUsesWhatAllReceiversReadOrNamesThoseThatCannot) {
  const Weights base = random_weights(1);
  LoopbackHub hub({}, 2);
  PublisherOptions options = quick_options();
  options.encoding = Encoding::kDeltasZstd;
  Trainer trainer(hub, 2, options, base);
  expect_ok(trainer.opened());
  Weights weights = changed_weights(base, 1, 0.02);
  Rollout rollout(hub, base);
  expect_ok(trainer.publish(weights));
  EXPECT_EQ(trainer.report().encoding, Encoding::kDeltasZstd);
  const auto report = [&](ReceiveRoad& road, std::vector<Encoding> encodings,
                          const std::string& id) {
    ReceiverNeeds needs;
    needs.encodings = std::move(encodings);
    const auto text = needs_to_text(needs, kMaxNeedsBytes);
    ASSERT_TRUE(text.ok());
    EXPECT_TRUE(road.report({id, 1, "digest", *text}, Deadline::after(1s)).ok());
  };
  const auto old = hub.receiver(), older = hub.receiver();
  report(*old, {Encoding::kIndices, Encoding::kFull}, "old");
  for (int step = 2; step < 4; ++step) {
    weights = changed_weights(weights, static_cast<std::uint64_t>(step), 0.02);
    expect_ok(trainer.publish(weights));
    EXPECT_EQ(trainer.report().encoding, Encoding::kIndices);
    const auto& notes = trainer.report().notes;
    EXPECT_EQ(!notes.empty() && notes[0].find("'old'") != std::string::npos, step == 2);
    EXPECT_EQ(rollout.follow().to_string(), "ok");
    EXPECT_TRUE(rollout.holds(weights));
  }
  report(*older, {Encoding::kFull}, "older");
  expect_ok(trainer.publish(changed_weights(weights, 9, 0.02)));
  ASSERT_FALSE(trainer.report().notes.empty());
  EXPECT_NE(trainer.report().notes[0].find("'older' do not read 'deltas_zstd'"), std::string::npos);
  EXPECT_NE(trainer.report().notes[0].find("cannot follow"), std::string::npos);
  ASSERT_TRUE(old->leave(Deadline::after(1s)).ok());
  ASSERT_TRUE(older->leave(Deadline::after(1s)).ok());
  expect_ok(trainer.publish(changed_weights(weights, 10, 0.02)));
  EXPECT_EQ(trainer.report().encoding, Encoding::kDeltasZstd);
}

// `compact` is used only if every receiver reads it and holds the old values; a receiver without an
// announcement may not hold them.
TEST(Capabilities, CompactIsForReceiversThatHoldTheOldValues) {
  Weights base = random_weights(1);
  LoopbackHub hub({}, 2);
  PublisherOptions options = quick_options();
  options.encoding = Encoding::kCompact;
  Trainer trainer(hub, 2, options, base);
  expect_ok(trainer.opened());
  Rollout rollout(hub, base);
  const auto encoding_with = [&](std::uint64_t seed) {
    base = changed_weights(base, seed, 0.02);
    expect_ok(trainer.publish(base));
    EXPECT_EQ(rollout.follow().to_string(), "ok");
    EXPECT_TRUE(rollout.holds(base));
    return trainer.report().encoding;
  };
  EXPECT_EQ(encoding_with(1), Encoding::kCompact);
  ReceiverNeeds needs;
  needs.encodings = {Encoding::kDeltas, Encoding::kCompact};
  const auto without = needs_to_text(needs, kMaxNeedsBytes);
  needs.old_values = true;
  const auto with = needs_to_text(needs, kMaxNeedsBytes);
  ASSERT_TRUE(without.ok() && with.ok());
  const auto other = hub.receiver();
  for (const std::string& text : {*without, std::string()}) {
    EXPECT_TRUE(other->report({"other", 1, "digest", text}, Deadline::after(1s)).ok());
    EXPECT_EQ(encoding_with(2), Encoding::kDeltas);
    ASSERT_FALSE(trainer.report().notes.empty());
    EXPECT_NE(trainer.report().notes[0].find("'other' do not read 'compact', or do not hold"),
              std::string::npos);
    EXPECT_TRUE(other->report({"other", 1, "digest", *with}, Deadline::after(1s)).ok());
    EXPECT_EQ(encoding_with(3), Encoding::kCompact);
  }
}

TEST(Cuts, OfMoreBlocksThanAReaderTakesAreRefused) {
  Weights weights;
  std::mt19937_64 random(1);
  weights["long"] = random_tensor(DType::kBF16, {4000}, random);
  PublisherOptions options = quick_options();
  for (const auto& [parts, good] : {std::pair{1024U, true}, std::pair{1500U, false}}) {
    options.cuts = {{"long", 0, parts}};
    LoopbackHub hub({}, 1);
    Trainer trainer(hub, 1, options, weights);
    EXPECT_EQ(trainer.opened()[0].ok(), good) << trainer.opened()[0].to_string();
    if (!good) continue;
    Rollout rollout(hub, weights);
    const Weights next = changed_weights(weights, 3, 0.2);
    expect_ok(trainer.publish(next));
    EXPECT_EQ(rollout.follow().to_string(), "ok");
    EXPECT_TRUE(rollout.holds(next));
  }
}

// A trainer that restarts with other ranks, blocks and cuts resumes the run.
TEST(Cuts, MayBeOthersAfterARestart) {
  const Weights base = random_weights(1);
  Weights weights = base;
  LoopbackHub hub({}, 4);
  std::unique_ptr<Rollout> rollout;
  std::uint64_t seed = 100;
  for (const unsigned ranks : {3U, 1U, 4U, 2U}) {  // further ranks have no tensors
    Trainer::offer_as([&](const Weights& all, unsigned rank) {
      return rank < ranks ? in_blocks(all, rank, ranks) : MemorySource(Weights(), 2);
    });
    PublisherOptions options = quick_options();
    if (ranks != 3) options.cuts = {{"model.embed.weight", ranks % 2, ranks + 1}};
    Trainer trainer(hub, 4, options, base);
    expect_ok(trainer.opened());
    if (rollout == nullptr) rollout = std::make_unique<Rollout>(hub, base);
    for (int step = 0; step < 2; ++step) {
      weights = changed_weights(weights, seed++, 0.02, "none");
      expect_ok(trainer.publish(weights));
    }
    EXPECT_EQ(rollout->follow().to_string(), "ok");
    EXPECT_TRUE(rollout->holds(weights)) << ranks;
  }
  Trainer::offer_as({});
}

TEST(Splitter, BringsEveryChangeIntoItsPart) {
  std::mt19937_64 random(7);
  const auto spec = TensorSpec::make("t", DType::kU16, {6, 5, 8});
  for (const TensorBox& box : {TensorBox{}, TensorBox{{1, 0, 2}, {4, 5, 5}}}) {
    for (std::uint32_t dim = 0; dim < 3; ++dim) {
      const BlockCut cut{0, dim, {2, 4}};
      const auto owned = OwnedTensor::make(0, *spec, box, &cut);
      ASSERT_TRUE(owned.ok()) << owned.status().to_string();
      ASSERT_FALSE(owned->parts().empty());
      std::map<std::uint64_t, std::uint16_t> expected, found;  // by unit of the tensor
      BlockSplitter splitter;
      const std::uint64_t units = owned->place().units;
      for (std::uint64_t origin = 0; origin < units; origin += units / 2) {
        std::vector<std::uint32_t> offsets;
        std::vector<std::uint16_t> values;
        for (std::uint32_t k = 0; k < units / 2 && origin + k < units; ++k) {
          if (random() % 3 != 0) continue;
          offsets.push_back(k);
          values.push_back(static_cast<std::uint16_t>(random()));
          expected[owned->place().at(origin + k)] = values.back();
        }
        const auto* const bytes = reinterpret_cast<const std::byte*>(values.data());
        splitter.add(*owned, {0, 2, origin, offsets, bytes});
      }
      const Status taken = splitter.take([&](const DeltaView& delta, const TensorBlock* block) {
        for (std::size_t k = 0; k < delta.offsets.size(); ++k) {
          std::uint16_t value = 0;
          std::memcpy(&value, delta.values + 2 * k, 2);
          found[block->place.at(delta.origin + delta.offsets[k])] = value;
        }
        return Status();
      });
      EXPECT_TRUE(taken.ok());
      EXPECT_EQ(found, expected) << box.to_string() << " " << dim;
    }
  }
}

}  // namespace
}  // namespace driftless
