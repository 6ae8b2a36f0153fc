// SPDX-License-Identifier: Apache-2.0
// The publisher over loopback, one rank or two, with real receivers behind it.
#include "plugin/publish/publisher.h"

#include <gtest/gtest.h>

#include <thread>

#include "support/loopback_job.h"

namespace driftless {
namespace {

using namespace std::chrono_literals;
using testing::changed_weights;
using testing::expect_ok;
using testing::MemorySource;
using testing::quick_options;
using testing::random_weights;
using testing::RoadFault;
using testing::Rollout;
using testing::Trainer;
using testing::Weights;

// The leader knows the number of changes of each tensor, whichever ranks hold its blocks.
void expect_all_counted(const PublishReport& report) {
  std::uint64_t counted = 0;
  for (std::size_t i = 0; i < report.most_changed.size(); ++i) {
    const TensorDensity& each = report.most_changed[i];
    counted += each.changed_units;
    EXPECT_LE(each.changed_units, each.total_units) << each.tensor;
    if (i > 0) {
      EXPECT_LE(each.changed_units, report.most_changed[i - 1].changed_units);
    }
  }
  EXPECT_EQ(counted, report.changed_units);
}

class PublisherRanks : public ::testing::TestWithParam<unsigned> {};
INSTANTIATE_TEST_SUITE_P(Ranks, PublisherRanks, ::testing::Values(1U, 2U, 3U));

TEST_P(PublisherRanks, EveryVersionArrivesBitForBitInEveryEncoding) {
  for (const Encoding encoding :
       {Encoding::kIndices, Encoding::kDeltas, Encoding::kDeltasZstd, Encoding::kCompact}) {
    LoopbackHub hub({}, GetParam());
    const Weights base = testing::random_weights(1);
    PublisherOptions options = quick_options();
    options.encoding = encoding;
    Trainer trainer(hub, GetParam(), options, base);
    expect_ok(trainer.opened());
    Rollout rollout(hub, base);
    Weights weights = base;
    for (unsigned version = 1; version <= 4; ++version) {
      weights = testing::changed_weights(weights, version, 0.01, "none");
      expect_ok(trainer.publish(weights));
      ASSERT_EQ(rollout.follow().to_string(), "ok");
      EXPECT_TRUE(rollout.holds(weights)) << "version " << version;
      EXPECT_EQ(rollout.state().digest, trainer.report().digest);
      EXPECT_EQ(rollout.state().id.version, version);
      EXPECT_EQ(trainer.report().version, version);
      EXPECT_GT(trainer.report().changed_units, 0U);
      EXPECT_LT(trainer.report().wire_bytes, trainer.report().full_bytes);
      expect_all_counted(trainer.report());
    }
  }
}

TEST_P(PublisherRanks, NoChangeIsStillAVersion) {
  LoopbackHub hub({}, GetParam());
  const Weights base = testing::random_weights(1);
  Trainer trainer(hub, GetParam(), quick_options(), base);
  Rollout rollout(hub, base);
  expect_ok(trainer.publish(base));
  ASSERT_EQ(rollout.follow().to_string(), "ok");
  EXPECT_EQ(rollout.state().id.version, 1U);
  EXPECT_TRUE(rollout.holds(base));
}

TEST_P(PublisherRanks, DenseVersionIsSentInFullAndReported) {
  LoopbackHub hub({}, GetParam());
  const Weights base = testing::random_weights(1);
  PublisherOptions options = quick_options();
  options.full_above_density = 0.2;
  Trainer trainer(hub, GetParam(), options, base);
  Rollout rollout(hub, base);
  const Weights dense = testing::random_weights(2);
  expect_ok(trainer.publish(dense));
  EXPECT_EQ(trainer.report().encoding, Encoding::kFull);
  ASSERT_EQ(trainer.report().notes.size(), 1U);
  EXPECT_NE(trainer.report().notes[0].find("sent in full"), std::string::npos);
  ASSERT_EQ(rollout.follow().to_string(), "ok");
  EXPECT_TRUE(rollout.holds(dense));
  const Weights next = testing::changed_weights(dense, 7, 0.01, "none");
  expect_ok(trainer.publish(next));
  EXPECT_EQ(trainer.report().encoding, Encoding::kDeltas);
  ASSERT_EQ(rollout.follow().to_string(), "ok");
  EXPECT_TRUE(rollout.holds(next));
}

// Each rank finds that the version is dense in a later batch, after it has written a part of its
// shard.
TEST_P(PublisherRanks, DenseIsFoundAfterAShardWasBegun) {
  LoopbackHub hub({}, GetParam());
  const Weights base = testing::random_weights(1);
  PublisherOptions options = quick_options();
  options.layout = DirectoryLayout::kHfDelta;
  options.encoding = Encoding::kXor;
  options.full_above_density = GetParam() == 1 ? 0.7 : 0.2;
  Trainer trainer(hub, GetParam(), options, base);
  Rollout rollout(hub, base);
  const Weights dense = testing::random_weights(2);
  expect_ok(trainer.publish(dense));
  EXPECT_EQ(trainer.report().encoding, Encoding::kFull);
  ASSERT_EQ(rollout.follow().to_string(), "ok");
  EXPECT_TRUE(rollout.holds(dense));
}

TEST_P(PublisherRanks, FullModeSendsWholeTensors) {
  LoopbackHub hub({}, GetParam());
  const Weights base = testing::random_weights(1);
  PublisherOptions options = quick_options();
  options.mode = UpdateMode::kFull;
  Trainer trainer(hub, GetParam(), options, base);
  Rollout rollout(hub, base);
  const Weights next = testing::changed_weights(base, 7, 0.01, "none");
  expect_ok(trainer.publish(next));
  EXPECT_GE(trainer.report().wire_bytes, trainer.report().full_bytes);
  ASSERT_EQ(rollout.follow().to_string(), "ok");
  EXPECT_TRUE(rollout.holds(next));
}

// Otherwise a version that fits at the start could fail in the middle.
TEST_P(PublisherRanks, AFullVersionTakesNoMoreThanItReserved) {
  const Weights base = testing::random_weights(1);
  PublisherOptions options = quick_options();
  options.mode = UpdateMode::kFull;
  LoopbackHub hub({}, GetParam());
  Trainer trainer(hub, GetParam(), options, base);
  expect_ok(trainer.publish(testing::changed_weights(base, 7, 0.01, "none")));
  std::uint64_t asked = 0;
  for (unsigned rank = 0; rank < GetParam(); ++rank) asked += trainer.road(rank).asked_bytes();
  EXPECT_GE(asked, trainer.report().wire_bytes);
  EXPECT_GE(trainer.report().wire_bytes, trainer.report().full_bytes);
}

// Whatever fails on any rank: no receiver sees the version, and the next version brings every
// receiver to the weights that it has.
TEST_P(PublisherRanks, FailureOnOneRankAbortsTheVersionOnAll) {
  for (const bool full : {false, true}) {
    for (unsigned bad = 0; bad < GetParam(); ++bad) {
      for (const RoadFault fault : {RoadFault::kBegin, RoadFault::kCreate, RoadFault::kWrite,
                                    RoadFault::kFlush, RoadFault::kSeal}) {
        if (fault == RoadFault::kSeal && bad > 0) continue;
        LoopbackHub hub({}, GetParam());
        const Weights base = testing::random_weights(1);
        PublisherOptions options = quick_options();
        options.mode = full ? UpdateMode::kFull : UpdateMode::kDelta;
        Trainer trainer(hub, GetParam(), options, base);
        Rollout rollout(hub, base);
        const Weights first = testing::changed_weights(base, 1, 0.01, "none");
        const Weights second = testing::changed_weights(first, 2, 0.01, "none");
        trainer.road(bad).arm(fault);
        for (const Status& status : trainer.publish(first)) {
          ASSERT_FALSE(status.ok());
          EXPECT_NE(status.message().find("injected"), std::string::npos) << status.to_string();
        }
        EXPECT_FALSE(trainer.road(bad).armed());
        ASSERT_EQ(rollout.follow().to_string(), "ok");
        EXPECT_EQ(rollout.state().id.version, 0U);
        expect_ok(trainer.publish(second));
        EXPECT_EQ(trainer.report().version, 1U);
        ASSERT_EQ(rollout.follow().to_string(), "ok");
        EXPECT_TRUE(rollout.holds(second)) << static_cast<int>(fault) << " on rank " << bad;
        EXPECT_EQ(rollout.state().digest, trainer.report().digest);
      }
    }
  }
}

// The undo log keeps a different amount of memory for pieces of which all changed than for a few
// changes.
TEST_P(PublisherRanks, RollsBackWhatChangedThroughout) {
  LoopbackHub hub({}, GetParam());
  const Weights base = testing::random_weights(1);
  PublisherOptions options = quick_options();
  options.full_above_density = 1;
  Trainer trainer(hub, GetParam(), options, base);
  Rollout rollout(hub, base);
  trainer.road(0).arm(RoadFault::kSeal);
  for (const Status& status : trainer.publish(testing::random_weights(7))) {
    ASSERT_FALSE(status.ok());
  }
  const Weights second = testing::changed_weights(base, 2, 0.01, "none");
  expect_ok(trainer.publish(second));
  EXPECT_LT(trainer.report().changed_units, trainer.report().total_units / 10);
  ASSERT_EQ(rollout.follow().to_string(), "ok");
  EXPECT_TRUE(rollout.holds(second));
}

TEST_P(PublisherRanks, SealWhoseAnswerIsLostIsFoundOut) {
  LoopbackHub hub({}, GetParam());
  const Weights base = testing::random_weights(1);
  Trainer trainer(hub, GetParam(), quick_options(), base);
  Rollout rollout(hub, base);
  const Weights first = testing::changed_weights(base, 1, 0.01, "none");
  trainer.road(0).arm(RoadFault::kSealLost);
  expect_ok(trainer.publish(first));
  EXPECT_EQ(trainer.report().notes.size(), 1U);
  ASSERT_EQ(rollout.follow().to_string(), "ok");
  EXPECT_TRUE(rollout.holds(first));
}

TEST_P(PublisherRanks, TheNextVersionSettlesAnUnconfirmedSeal) {
  for (const bool really : {true, false}) {
    LoopbackHub hub({}, GetParam());
    const Weights base = testing::random_weights(1);
    Trainer trainer(hub, GetParam(), quick_options(), base);
    Rollout rollout(hub, base);
    const Weights first = testing::changed_weights(base, 1, 0.01, "none");
    const Weights second = testing::changed_weights(first, 2, 0.01, "none");
    trainer.road(0).arm(really ? RoadFault::kSealUnknown : RoadFault::kSealUnknownNot);
    for (const Status& status : trainer.publish(first)) ASSERT_FALSE(status.ok());
    ASSERT_EQ(rollout.follow().to_string(), "ok");
    EXPECT_EQ(rollout.state().id.version, really ? 1U : 0U);
    expect_ok(trainer.publish(second));
    EXPECT_EQ(trainer.report().version, really ? 2U : 1U);
    ASSERT_EQ(rollout.follow().to_string(), "ok");
    EXPECT_TRUE(rollout.holds(second));
    EXPECT_EQ(rollout.state().digest, trainer.report().digest);
  }
}

TEST_P(PublisherRanks, AnotherPublishersVersionDoesNotSettleAnUnconfirmedSeal) {
  LoopbackHub hub({}, GetParam());
  const Weights base = testing::random_weights(1);
  const Weights ours = testing::changed_weights(base, 1, 0.01, "none");
  const Weights theirs = testing::changed_weights(base, 2, 0.01, "none");
  Trainer late(hub, GetParam(), quick_options(), base);
  late.road(0).arm(RoadFault::kSealUnknownNot);
  for (const Status& status : late.publish(ours)) ASSERT_FALSE(status.ok());
  Trainer other(hub, GetParam(), quick_options(), base);
  expect_ok(other.publish(theirs));
  for (int round = 0; round < 2; ++round) {
    for (const Status& status : late.publish(ours)) {
      EXPECT_EQ(status.code(), StatusCode::kWrongRun) << status.to_string();
    }
  }
  Rollout rollout(hub, base);
  ASSERT_EQ(rollout.follow().to_string(), "ok");
  EXPECT_TRUE(rollout.holds(theirs));
}

TEST_P(PublisherRanks, AnchorsByNumberOnDemandAndBySize) {
  LoopbackHub hub({}, GetParam());
  const Weights base = testing::random_weights(1);
  PublisherOptions options = quick_options();
  options.first_anchor = true;
  options.anchor_every = 3;
  Trainer trainer(hub, GetParam(), options, base);
  expect_ok(trainer.opened());
  Rollout early(hub, std::nullopt);
  ASSERT_EQ(early.follow().to_string(), "ok");
  EXPECT_TRUE(early.holds(base));
  Weights weights = base;
  std::vector<bool> anchored;
  for (unsigned version = 1; version <= 5; ++version) {
    weights = testing::changed_weights(weights, version, 0.01, "none");
    if (version == 5) trainer.rank(0).request_anchor();
    expect_ok(trainer.publish(weights));
    anchored.push_back(trainer.report().anchor);
  }
  EXPECT_EQ(anchored, (std::vector<bool>{false, false, true, false, true}));
  Rollout late(hub, std::nullopt);
  ASSERT_EQ(late.follow().to_string(), "ok");
  EXPECT_TRUE(late.holds(weights));
  ASSERT_EQ(early.follow().to_string(), "ok");
  EXPECT_TRUE(early.holds(weights));
}

TEST_P(PublisherRanks, AnchorComesWhenTheStepsOutgrowIt) {
  LoopbackHub hub({}, GetParam());
  Weights weights = testing::random_weights(1);
  PublisherOptions options = quick_options();
  options.anchor_by_size = true;
  options.full_above_density = 1.0;
  Trainer trainer(hub, GetParam(), options, weights);
  std::uint64_t since = 0;
  for (unsigned version = 1; version <= 8; ++version) {
    weights = testing::changed_weights(weights, version, 0.2, "none");
    expect_ok(trainer.publish(weights));
    since += trainer.report().wire_bytes;
    EXPECT_EQ(trainer.report().anchor, since > trainer.report().full_bytes) << version;
    if (trainer.report().anchor) since = 0;
  }
}

TEST_P(PublisherRanks, RestartedTrainerGoesOnWithTheRun) {
  LoopbackHub hub({}, GetParam());
  const Weights base = testing::random_weights(1);
  Rollout* rollout = nullptr;
  std::unique_ptr<Rollout> held;
  Weights weights = base;
  Hash128 run;
  {
    Trainer trainer(hub, GetParam(), quick_options(), base);
    held = std::make_unique<Rollout>(hub, base);
    rollout = held.get();
    for (unsigned version = 1; version <= 2; ++version) {
      weights = testing::changed_weights(weights, version, 0.01, "none");
      expect_ok(trainer.publish(weights));
    }
    run = trainer.rank(0).version().run;
  }
  ASSERT_EQ(rollout->follow().to_string(), "ok");
  Trainer again(hub, GetParam(), quick_options(), base);
  expect_ok(again.opened());
  EXPECT_TRUE(again.rank(0).resumed());
  EXPECT_EQ(again.rank(0).version(), (VersionId{run, 2}));
  // Two training steps were lost or repeated: only the present weights count.
  weights = testing::changed_weights(base, 99, 0.02, "none");
  expect_ok(again.publish(weights));
  EXPECT_EQ(again.report().version, 3U);
  ASSERT_EQ(rollout->follow().to_string(), "ok");
  EXPECT_TRUE(rollout->holds(weights));
}

TEST_P(PublisherRanks, RefusesTheRoadOfAnotherRun) {
  LoopbackHub hub({}, GetParam());
  const Weights base = testing::random_weights(1);
  {
    Trainer trainer(hub, GetParam(), quick_options(), base);
  }
  const auto opened = [&](const PublisherOptions& options, const Weights& weights) {
    return Trainer(hub, GetParam(), options, weights).opened();
  };
  for (const Status& status : opened(quick_options(), testing::random_weights(2))) {
    EXPECT_EQ(status.code(), StatusCode::kWrongBase) << status.to_string();
  }
  for (const Status& status : opened(quick_options(), testing::random_weights(1, 65))) {
    EXPECT_EQ(status.code(), StatusCode::kWrongLayout) << status.to_string();
  }
  PublisherOptions never = quick_options();
  never.resume = ResumeMode::kNever;
  for (const Status& status : opened(never, base)) {
    EXPECT_EQ(status.code(), StatusCode::kAlreadyExists) << status.to_string();
  }
}

TEST(Publisher, TensorOfTwoRanksIsDroppedOnOneAndReported) {
  Trainer::share_embedding(true);
  LoopbackHub hub({}, 2);
  const Weights base = testing::random_weights(1);
  Trainer trainer(hub, 2, quick_options(), base);
  expect_ok(trainer.opened());
  ASSERT_EQ(trainer.rank(0).notes().size(), 1U);
  EXPECT_NE(trainer.rank(0).notes()[0].find("'model.embed.weight'"), std::string::npos);
  Rollout rollout(hub, base);
  const Weights next = testing::changed_weights(base, 1, 0.05, "none");
  expect_ok(trainer.publish(next));
  Trainer::share_embedding(false);
  ASSERT_EQ(rollout.follow().to_string(), "ok");
  EXPECT_TRUE(rollout.holds(next));
}

TEST(Publisher, SilentRankEndsTheVersionWithinTheDeadline) {
  LoopbackHub hub({}, 2);
  const Weights base = testing::random_weights(1);
  PublisherOptions options = quick_options();
  options.deadline = 1s;
  Trainer trainer(hub, 2, options, base);
  Rollout rollout(hub, base);
  const Weights first = testing::changed_weights(base, 1, 0.01, "none");
  const Weights second = testing::changed_weights(first, 2, 0.01, "none");
  const auto statuses = trainer.each([&](unsigned rank) -> Status {
    if (rank == 1) std::this_thread::sleep_for(1500ms);  // too late for this one
    MemorySource source = trainer.offer(first, rank);
    return trainer.rank(rank).publish(source).status();
  });
  EXPECT_EQ(statuses[0].code(), StatusCode::kDeadlineExceeded) << statuses[0].to_string();
  EXPECT_NE(statuses[0].message().find("1"), std::string::npos);
  EXPECT_FALSE(statuses[1].ok());
  expect_ok(trainer.publish(second));
  ASSERT_EQ(rollout.follow().to_string(), "ok");
  EXPECT_TRUE(rollout.holds(second));
}

TEST(Publisher, OtherTensorsThanAtTheBeginningAreRefused) {
  LoopbackHub hub({}, 1);
  const Weights base = testing::random_weights(1);
  Trainer trainer(hub, 1, quick_options(), base);
  const auto statuses = trainer.publish(testing::random_weights(1, 65));
  EXPECT_EQ(statuses[0].code(), StatusCode::kWrongLayout);
  expect_ok(trainer.publish(base));
}

}  // namespace
}  // namespace driftless
