// SPDX-License-Identifier: Apache-2.0
// Faults of publishers without a snapshot: any version that a receiver takes has the trainer's
// weights.
#include "support/live_publishing.h"

namespace driftless {
namespace {

using namespace testing;

class LiveFaults : public LivePublishing {
 protected:
  LiveFaults() : LivePublishing(true) {}
  void start_over() {
    trainer_.reset();
    rollout_.reset();
    files_.reset();
    hub_ = LoopbackHub({}, GetParam().ranks);
    Trainer::hold_at_first({});
  }
  void expect_failed() {
    for (const Status& status : trainer_->publish_live()) EXPECT_FALSE(status.ok());
  }
  // Captures an optimizer's step that may then not be written.
  void capture(const Weights& weights) {
    for (unsigned rank = 0; rank < GetParam().ranks; ++rank) {
      MemorySource after = trainer_->offer(weights, rank);
      std::vector<Publisher::NewTensor> values;
      for (std::size_t i = 0; i < after.tensors().size(); ++i) {
        values.push_back({i, after.bytes(i).data(), after.tensors()[i].dtype});
      }
      ASSERT_TRUE(trainer_->rank(rank).capture(values).ok());
    }
  }
  // As publish(wait=False): `meanwhile` runs between the call and the making of the version.
  std::vector<Status> publish_in_background(const std::function<void()>& meanwhile = [] {}) {
    for (unsigned rank = 0; rank < GetParam().ranks; ++rank) {
      EXPECT_TRUE(trainer_->rank(rank).observe(trainer_->live(rank), nullptr, true).ok());
    }
    meanwhile();
    return trainer_->publish_live();
  }
  // Expects that the version is `weights`, or that there is none and receivers have `before`.
  bool expect_all_or_mismatch(const std::vector<Status>& statuses, const Weights& weights,
                              const Weights& before) {
    bool good = true;
    for (const Status& status : statuses) {
      good = good && status.ok();
      EXPECT_TRUE(status.ok() || status.code() == StatusCode::kMismatch) << status.to_string();
    }
    expect_followed(good ? weights : before);
    return good;
  }
  // Writes weights without capture().
  void write(const Weights& weights) {
    for (unsigned rank = 0; rank < GetParam().ranks; ++rank) {
      MemorySource after = trainer_->offer(weights, rank);
      for (std::size_t i = 0; i < after.tensors().size(); ++i) {
        std::ranges::copy(after.bytes(i), trainer_->live(rank).bytes(i).begin());
      }
    }
  }
};

INSTANTIATE_TEST_SUITE_P(
    Ways, LiveFaults,
    ::testing::Values(LiveWay{1}, LiveWay{3, Encoding::kIndices}, LiveWay{2, Encoding::kCompact},
                      LiveWay{2, Encoding::kDeltasZstd, DirectoryLayout::kFlush},
                      LiveWay{1, Encoding::kXor, DirectoryLayout::kHfDelta},
                      LiveWay{2, Encoding::kOverwrite, DirectoryLayout::kHfDelta}));

// The weights differ from the base, which is found when the run is opened.
TEST_P(LiveFaults, SendsOtherWeightsThanTheBaseWhetherItSweepsOrNot) {
  for (const std::uint64_t sweep_every : {1, 0}) {
    options_.sweep_every = sweep_every;
    start_over();
    Weights weights = changed_weights(base_, 2, 0.01, "none");
    Trainer::hold_at_first(weights);
    open(base_);
    expect_published(weights);
    weights = changed_weights(weights, 3, 0.01, "none");
    trainer_->step(weights);
    expect_published(weights);
  }
}

// Rank 0 assembles whole tensors from the weights; receivers have other weights.
TEST_P(LiveFaults, SendsABlockThatIsNotTheBases) {
  Weights weights = base_;
  weights.at("model.layers.0.scale").bytes[700] ^= std::byte{1};
  Trainer::hold_at_first(weights);
  open(base_);
  expect_published(weights);
}

// Changes that capture() refused are found even if no sweep is due.
TEST_P(LiveFaults, SweepsAfterACaptureThatFailed) {
  options_.sweep_every = 0;
  open(base_);
  const std::vector<std::byte> wide(8 << 20);
  const Publisher::NewTensor half{0, wide.data(), DType::kF64};
  EXPECT_EQ(trainer_->rank(0).capture({&half, 1}).code(), StatusCode::kUnsupported);
  Weights weights = base_;
  MemorySource& source = trainer_->live(0);
  source.bytes(0)[0] ^= std::byte{1};
  weights.at(source.tensors()[0].name);
  expect_ok(trainer_->publish_live());
  EXPECT_EQ(trainer_->report().live.resent_tensors, 1U);
  ASSERT_EQ(rollout_->follow().to_string(), "ok");
  EXPECT_FALSE(rollout_->holds(base_));
}

// Otherwise two threads would write to the same place.
TEST_P(LiveFaults, RefusesATensorTwiceInACapture) {
  open(base_);
  const MemorySource& source = trainer_->live(0);
  const std::vector<std::byte> none(4096 * 8);
  const Publisher::NewTensor value{0, none.data(), source.tensors()[0].dtype};
  const std::vector<Publisher::NewTensor> twice{value, value};
  const Status refused = trainer_->rank(0).capture(twice);
  EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(refused.message().find(source.tensors()[0].name), std::string::npos)
      << refused.message();
  expect_published(base_);
}

// Receivers also have the whole tensors that rank 0 assembles.
TEST_P(LiveFaults, KeepsTheChangesOfAWholeVersionThatFailed) {
  open(base_);
  const Weights dense = random_weights(9);
  trainer_->step(dense);
  trainer_->road(0).arm(RoadFault::kSeal);
  expect_failed();
  Weights weights = changed_weights(base_, 4, 0.01, "none");
  trainer_->step(weights);
  expect_published(weights);
}

TEST_P(LiveFaults, KeepsTheChangesOfAnAnchorThatFailed) {
  open(base_);
  Weights weights = changed_weights(base_, 2, 0.01, "none");
  trainer_->step(weights);
  expect_published(weights);
  weights = changed_weights(weights, 3, 0.01, "none");
  trainer_->step(weights);
  const std::vector<Status> moved_on =
      trainer_->each([&](unsigned rank) { return trainer_->rank(rank).publish_anchor(); });
  for (const Status& status : moved_on) EXPECT_EQ(status.code(), StatusCode::kMismatch);
  expect_published(weights);
}

// No receiver could continue from a version that mixes the old weights and the new ones. Full
// versions, and tensors that are sent whole, are read from the weights.
TEST_P(LiveFaults, PublishesNothingThatWasWrittenWhileItWasRead) {
  options_.background = false;
  options_.full_above_density = 1;
  for (const UpdateMode mode : {UpdateMode::kFull, UpdateMode::kDelta}) {
    // Here the first pass finds that the version must be full, and reads nothing.
    if (mode == UpdateMode::kDelta && options_.layout == DirectoryLayout::kHfDelta) continue;
    options_.mode = mode;
    start_over();
    open(base_);
    write(changed_weights(base_, 2, 0.01, "none"));
    bool wrote = false;
    trainer_->road(0).at_create([&] {
      if (std::exchange(wrote, true)) return;
      MemorySource& source = trainer_->live(0);
      for (std::size_t i = 0; i < source.tensors().size(); ++i) {
        for (std::byte& byte : source.bytes(i)) byte ^= std::byte{1};
      }
    });
    expect_failed();
    ASSERT_TRUE(wrote);
    expect_followed(base_);
    const Weights weights = changed_weights(base_, 4, 0.01, "none");
    trainer_->step(weights);
    expect_published(weights);
  }
}

struct Background {
  UpdateMode mode;
  std::uint64_t capture_bytes;  // so few that tensors are sent whole
  std::uint64_t sweep_every;
};
constexpr Background kInBackground[] = {
    {UpdateMode::kDelta, 1 << 20, 1}, {UpdateMode::kDelta, 100, 1},
    {UpdateMode::kFull, 1 << 20, 1},  {UpdateMode::kFull, 100, 1},
    {UpdateMode::kDelta, 1 << 20, 0}, {UpdateMode::kDelta, 100, 0}};

// Other weights (those of an evaluation) are swapped in before the version is read, completely or
// only one tensor so far. A version must have the weights at the time of the call.
TEST_P(LiveFaults, ABackgroundVersionHasTheWeightsOfTheCallOrFails) {
  options_.full_above_density = 1;
  for (const auto& [mode, capture_bytes, sweep_every] : kInBackground) {
    options_.mode = mode;
    options_.capture_bytes = capture_bytes;
    options_.sweep_every = sweep_every;
    for (const std::string swapped : {"all", kEmbed, "model.norm.weight"}) {
      SCOPED_TRACE(concat(swapped, " ", capture_bytes, " ", sweep_every));
      start_over();
      open(base_);
      const Weights weights = changed_weights(base_, 2, 0.01, "none");
      const Weights average = changed_weights(weights, 3, 0.01, "none");
      Weights other = swapped == "all" ? average : weights;
      if (swapped != "all") other.at(swapped) = average.at(swapped);
      trainer_->step(weights);
      const bool good =
          expect_all_or_mismatch(publish_in_background([&] { write(other); }), weights, base_);
      EXPECT_TRUE(!good || sweep_every == 0);
      write(weights);  // swapped back
      expect_ok(publish_in_background());
      expect_followed(weights);
    }
  }
}

// The swap is slow: one more tensor with every part that is written.
TEST_P(LiveFaults, ABackgroundVersionDoesNotMixTwoWeights) {
  options_.background = false;
  options_.full_above_density = 1;
  for (const auto& [mode, capture_bytes, sweep_every] : kInBackground) {
    options_.mode = mode;
    options_.capture_bytes = capture_bytes;
    options_.sweep_every = sweep_every;
    for (const std::size_t first : {0U, 2U}) {
      start_over();
      open(base_);
      const Weights weights = changed_weights(base_, 2, 0.01, "none");
      trainer_->step(weights);
      MemorySource average = trainer_->offer(changed_weights(weights, 3, 0.01, "none"), 0);
      std::size_t next = 0;
      const auto swap_some = [&] {
        MemorySource& source = trainer_->live(0);
        const std::size_t tensor = next++;
        if (tensor >= source.tensors().size()) return;
        std::ranges::copy(average.bytes(tensor), source.bytes(tensor).begin());
      };
      trainer_->road(0).at_create(swap_some);
      expect_all_or_mismatch(publish_in_background([&] {
                               for (std::size_t i = 0; i < first; ++i) swap_some();
                             }),
                             weights, base_);
      trainer_->road(0).at_create({});
      write(weights);
      expect_ok(publish_in_background());
      expect_followed(weights);
    }
  }
}

// A checkpoint is loaded before the call without capture(), so all weights are read. If a tensor is
// written without capture() beside a captured step, the version that finds it fails, and the next
// one carries it.
TEST_P(LiveFaults, ABackgroundVersionFindsEarlierWritesWithoutCapture) {
  options_.full_above_density = 1;
  open(base_);
  Weights weights = changed_weights(base_, 2, 0.01, "none");
  write(weights);
  expect_ok(publish_in_background());
  expect_followed(weights);
  const Weights before = weights;
  weights = changed_weights(weights, 3, 0.01, "none");
  trainer_->step(weights, kEmbed);
  const std::vector<Status> found = publish_in_background();
  EXPECT_FALSE(expect_all_or_mismatch(found, weights, before));
  EXPECT_NE(found[0].message().find(kEmbed), std::string::npos) << found[0].message();
  expect_ok(publish_in_background());
  expect_followed(weights);
  weights = changed_weights(weights, 4, 0.01, "none");
  trainer_->step(weights);
  expect_ok(publish_in_background());
  expect_followed(weights);
  EXPECT_TRUE(trainer_->report().notes.empty()) << trainer_->report().notes.front();
}

// A tensor has changes that were captured and others that were not, and there is no sweep:
// receivers get the captured ones.
TEST_P(LiveFaults, SendsWhatReceiversCanReadWithoutASweep) {
  options_.sweep_every = 0;
  open(base_);
  Weights captured = base_;
  for (std::size_t i = 0; i < 4000; i += 40) captured.at(kEmbed).bytes[i] ^= std::byte{1};
  trainer_->step(captured);
  Weights written = captured;
  for (std::size_t i = 1; i < 4000; i += 90) written.at(kEmbed).bytes[i] ^= std::byte{0x7f};
  write(written);
  expect_ok(trainer_->publish_live());
  EXPECT_EQ(rollout_->follow().to_string(), "ok");
}

// Does one random thing to a trainer's weights; capture() sees some of these.
Weights happen(Trainer& trainer, const Weights& before, std::mt19937_64& random,
               const std::function<void(const Weights&)>& capture,
               const std::function<void(const Weights&)>& write) {
  const Weights after = changed_weights(before, random(), 0.01, "none");
  switch (random() % 6) {
    case 0: trainer.step(after, kEmbed); return after;
    case 1: capture(after); return before;
    case 2: write(after); return after;
    case 3: {
      trainer.step(after);
      trainer.step(before);
      return before;
    }
    case 4: {
      if (random() % 3 != 0) break;
      const Weights dense = random_weights(random());
      trainer.step(dense);
      return dense;
    }
    default: break;
  }
  trainer.step(after);
  return after;
}

// Any order of steps, foreign writes, skipped steps, failures, anchors and restarts.
TEST_P(LiveFaults, WhateverHappens) {
  constexpr RoadFault kFaults[] = {
      RoadFault::kBegin, RoadFault::kCreate,   RoadFault::kWrite,       RoadFault::kFlush,
      RoadFault::kSeal,  RoadFault::kSealLost, RoadFault::kSealUnknown, RoadFault::kSealUnknownNot};
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    options_.capture_bytes = random() % 3 == 0 ? 3000 : 1 << 20;
    options_.first_anchor = random() % 2 == 0;
    Trainer::watch(random() % 2 == 0 ? std::vector<std::string>{"model.layers.0.up.weight"}
                                     : std::vector<std::string>());
    start_over();
    open(base_);
    Weights weights = base_;
    for (int version = 0; version < 12; ++version) {
      for (std::uint64_t steps = random() % 3; steps-- > 0;) {
        weights = happen(
            *trainer_, weights, random, [&](const Weights& w) { capture(w); },
            [&](const Weights& w) { write(w); });
      }
      if (random() % 4 == 0) trainer_->rank(0).request_anchor();
      if (random() % 6 == 0) {
        Trainer::hold_at_first(weights);
        open(base_);
      }
      const auto rank = static_cast<unsigned>(random() % GetParam().ranks);
      const RoadFault fault = kFaults[random() % std::size(kFaults)];
      if (random() % 2 == 0) trainer_->road(rank).arm(fault);
      bool good = true;
      const bool in_background = random() % 2 == 0;
      for (const Status& status :
           in_background ? publish_in_background() : trainer_->publish_live()) {
        good = good && status.ok();
      }
      trainer_->road(rank).arm(RoadFault::kNone);
      if (!good) continue;
      ASSERT_NO_FATAL_FAILURE(expect_followed(weights)) << "version " << version;
      if (HasFailure()) return;
    }
    expect_published(weights);
  }
}

}  // namespace
}  // namespace driftless
