// SPDX-License-Identifier: Apache-2.0
// Publishers without a snapshot: changes are captured as they are written, and proven.
#include <gtest/gtest.h>

#include <cstring>

#include "support/live_publishing.h"

namespace driftless {
namespace {

using namespace testing;

class LivePublisher : public LivePublishing {
 protected:
  LivePublisher() : LivePublishing(GetParam().layout == DirectoryLayout::kFrames) {}
  // Expects that a rollout that starts with nothing gets these weights.
  void expect_joined(const Weights& weights) {
    Rollout late(hub_, std::nullopt);
    EXPECT_EQ(late.follow().to_string(), "ok");
    EXPECT_TRUE(late.holds(weights));
  }
  [[nodiscard]] bool noted(const std::string& words) const {
    return std::ranges::any_of(trainer_->report().notes, [&](const std::string& note) {
      return note.find(words) != std::string::npos;
    });
  }
  // Whether a tensor that is sent whole makes the version full.
  [[nodiscard]] static bool in_full() { return GetParam().layout == DirectoryLayout::kHfDelta; }
};

INSTANTIATE_TEST_SUITE_P(
    Ways, LivePublisher,
    ::testing::Values(LiveWay{1}, LiveWay{3, Encoding::kIndices}, LiveWay{2, Encoding::kCompact},
                      LiveWay{2, Encoding::kDeltasZstd, DirectoryLayout::kFlush},
                      LiveWay{1, Encoding::kXor, DirectoryLayout::kHfDelta},
                      LiveWay{2, Encoding::kOverwrite, DirectoryLayout::kHfDelta}));

TEST_P(LivePublisher, SendsWhatSeveralCapturesAddUpTo) {
  open(base_);
  Weights weights = base_;
  for (std::uint64_t step = 1; step <= 6; ++step) {
    weights = changed_weights(weights, step, 0.01, "none");
    trainer_->step(weights);
    if (step % 2 == 1) continue;
    expect_published(weights);
    EXPECT_EQ(trainer_->report().encoding, GetParam().encoding) << step;
    EXPECT_GT(trainer_->report().live.captured_bytes, 0U);
    EXPECT_EQ(trainer_->report().live.resent_tensors, 0U);
    EXPECT_TRUE(trainer_->report().notes.empty()) << trainer_->report().notes.front();
  }
}

// A change that is changed back is not published; neither is a publish() without a step.
TEST_P(LivePublisher, DropsWhatIsAsItWas) {
  open(base_);
  const Weights there = changed_weights(base_, 3, 0.02, "none");
  trainer_->step(there);
  trainer_->step(base_);
  expect_published(base_);
  EXPECT_EQ(trainer_->report().changed_units, 0U);
  trainer_->step(there);
  expect_published(there);
  EXPECT_GT(trainer_->report().changed_units, 0U);
  expect_published(there);
  EXPECT_EQ(trainer_->report().changed_units, 0U);
}

TEST_P(LivePublisher, KeepsTheChangesOfAVersionThatFailed) {
  open(base_);
  Weights weights = base_;
  std::uint64_t seed = 1;
  for (const RoadFault fault : {RoadFault::kBegin, RoadFault::kFlush, RoadFault::kSeal,
                                RoadFault::kSealUnknown, RoadFault::kSealUnknownNot}) {
    weights = changed_weights(weights, ++seed, 0.01, "none");
    trainer_->step(weights);
    trainer_->road(0).arm(fault);
    for (const Status& status : trainer_->publish_live()) EXPECT_FALSE(status.ok());
    weights = changed_weights(weights, ++seed, 0.01, "none");
    trainer_->step(weights);
    expect_published(weights);
    EXPECT_EQ(trainer_->report().encoding, GetParam().encoding) << static_cast<int>(fault);
  }
}

TEST_P(LivePublisher, FindsByNameWhatWasWrittenWithoutCapture) {
  open(base_);
  Weights weights = changed_weights(base_, 2, 0.01, "none");
  trainer_->step(weights, kEmbed);
  expect_published(weights);
  EXPECT_TRUE(noted("tensor 'model.embed.weight' of publisher rank 0 was written without capture"));
  EXPECT_GT(trainer_->report().live.resent_tensors, 0U);
  // All changes are small, so the whole tensor makes most of the density.
  const bool full = in_full() || trainer_->report().encoding == Encoding::kFull;
  EXPECT_TRUE(full || trainer_->report().changed_units > 256 * 48 / GetParam().ranks);
  weights = changed_weights(weights, 3, 0.01, "none");
  trainer_->step(weights);
  expect_published(weights);
  EXPECT_EQ(trainer_->report().encoding, GetParam().encoding);
  EXPECT_TRUE(trainer_->report().notes.empty());
}

// If the layout is frames, a version may carry a whole tensor among changes.
TEST_P(LivePublisher, SendsASmallTensorWholeAmongChanges) {
  open(base_);
  Weights weights = base_;
  weights.at("model.norm.weight").bytes[5] ^= std::byte{1};
  trainer_->step(weights, "model.norm.weight");
  weights.at(kEmbed).bytes[1000] ^= std::byte{1};
  trainer_->step(weights);
  expect_published(weights);
  if (in_full()) {
    EXPECT_EQ(trainer_->report().encoding, Encoding::kFull);
    EXPECT_TRUE(noted("cannot carry a whole tensor"));
  } else {
    EXPECT_EQ(trainer_->report().encoding, GetParam().encoding);
    EXPECT_EQ(trainer_->report().changed_units, 97U);
  }
}

// The changes were captured, but the step was skipped.
TEST_P(LivePublisher, FindsWhatWasCapturedAndNotWritten) {
  open(base_);
  const Weights never = changed_weights(base_, 2, 0.01, "none");
  for (unsigned rank = 0; rank < GetParam().ranks; ++rank) {
    MemorySource after = trainer_->offer(never, rank);
    std::vector<Publisher::NewTensor> values;
    for (std::size_t i = 0; i < after.tensors().size(); ++i) {
      values.push_back({i, after.bytes(i).data(), after.tensors()[i].dtype});
    }
    ASSERT_TRUE(trainer_->rank(rank).capture(values).ok());
  }
  expect_published(base_);
  EXPECT_TRUE(noted("was written without capture"));
  EXPECT_EQ(trainer_->report().changed_units, 0U) << "receivers have it so";
  const Weights weights = changed_weights(base_, 3, 0.01, "none");
  trainer_->step(weights);
  expect_published(weights);
  EXPECT_EQ(trainer_->report().encoding, GetParam().encoding);
}

TEST_P(LivePublisher, SendsInFullWhatItCouldNotKeep) {
  options_.capture_bytes = 100;
  open(base_);
  Weights weights = changed_weights(base_, 2, 0.05, "none");
  trainer_->step(weights);
  expect_published(weights);
  EXPECT_GT(trainer_->report().live.resent_tensors, 0U);
  EXPECT_LE(trainer_->report().live.captured_bytes, 100U);
  weights.at("model.norm.weight").bytes[5] ^= std::byte{1};
  trainer_->step(weights);
  expect_published(weights);
  EXPECT_EQ(trainer_->report().changed_units, 1U);
  EXPECT_EQ(trainer_->report().live.resent_tensors, 0U);
}

TEST_P(LivePublisher, SendsADenseStepInFull) {
  open(base_);
  const Weights dense = random_weights(9);
  trainer_->step(dense);
  expect_published(dense);
  EXPECT_EQ(trainer_->report().encoding, Encoding::kFull);
  const Weights next = changed_weights(dense, 4, 0.01, "none");
  trainer_->step(next);
  expect_published(next);
  EXPECT_EQ(trainer_->report().encoding, GetParam().encoding);
}

TEST_P(LivePublisher, GoesOnAfterARestart) {
  options_.first_anchor = true;
  open(base_);
  Weights weights = changed_weights(base_, 2, 0.01, "none");
  trainer_->step(weights);
  expect_published(weights);
  // With the version's weights, the trainer continues as before.
  Trainer::hold_at_first(weights);
  open(base_);
  ASSERT_TRUE(trainer_->rank(0).resumed());
  weights = changed_weights(weights, 3, 0.01, "none");
  trainer_->step(weights);
  expect_published(weights);
  EXPECT_EQ(trainer_->report().encoding, GetParam().encoding);
  // With other weights, the trainer does not have those of the receivers.
  weights = changed_weights(weights, 4, 0.01, "none");
  Trainer::hold_at_first(weights);
  open(base_);
  weights = changed_weights(weights, 5, 0.01, "none");
  trainer_->step(weights);
  expect_published(weights);
  EXPECT_EQ(trainer_->report().encoding, Encoding::kFull);
}

// A trainer that starts from a checkpoint of its own, and receivers that start from the base.
TEST_P(LivePublisher, StartsWithOtherWeightsThanTheBase) {
  options_.first_anchor = true;
  Weights weights = changed_weights(base_, 2, 0.01, "none");
  Trainer::hold_at_first(weights);
  open(base_);
  expect_published(weights);
  expect_joined(weights);
  weights = changed_weights(weights, 3, 0.01, "none");
  trainer_->step(weights);
  expect_published(weights);
  EXPECT_EQ(trainer_->report().encoding, GetParam().encoding);
}

// Anchors are read from the weights. An anchor is refused if the weights have moved on since its
// version.
TEST_P(LivePublisher, MakesAnchors) {
  open(base_);
  Weights weights = changed_weights(base_, 2, 0.01, "none");
  trainer_->step(weights);
  trainer_->rank(0).request_anchor();
  expect_published(weights);
  EXPECT_EQ(trainer_->report().anchor, !in_full());
  expect_joined(weights);
  weights = changed_weights(weights, 3, 0.01, "none");
  trainer_->step(weights);
  expect_published(weights);
  const auto anchor = [&] {
    return trainer_->each([&](unsigned rank) { return trainer_->rank(rank).publish_anchor(); });
  };
  const Weights next = changed_weights(weights, 4, 0.01, "none");
  trainer_->step(next);
  for (const Status& status : anchor()) {
    EXPECT_EQ(status.code(), StatusCode::kMismatch) << status.to_string();
    EXPECT_NE(status.message().find("have changed since"), std::string::npos) << status.message();
  }
  expect_published(next);
  EXPECT_EQ(trainer_->report().encoding, GetParam().encoding);
  expect_ok(anchor());
}

TEST_P(LivePublisher, ComparesWhatIsWatched) {
  Trainer::watch({kEmbed, "model.layers.0.counter"});
  open(base_);
  Weights weights = base_;
  for (std::uint64_t step = 1; step <= 3; ++step) {
    weights = changed_weights(weights, step, 0.01, "none");
    trainer_->step(weights, kEmbed);
    if (step == 2) {
      trainer_->road(0).arm(RoadFault::kFlush);
      for (const Status& status : trainer_->publish_live()) EXPECT_FALSE(status.ok());
      weights = changed_weights(weights, 10 + step, 0.01, "none");
      trainer_->step(weights, kEmbed);
    }
    expect_published(weights);
    EXPECT_EQ(trainer_->report().encoding, GetParam().encoding);
    EXPECT_TRUE(trainer_->report().notes.empty()) << trainer_->report().notes.front();
  }
}

// Without a sweep, a write without capture() stays undetected until a sweep is due. `compact` is
// coded relative to the weights, and hf_delta has checksums of them, so each of their versions
// needs a sweep.
TEST_P(LivePublisher, SweepsAsOftenAsConfigured) {
  options_.sweep_every = 2;
  open(base_);
  const Weights weights = changed_weights(base_, 2, 0.01, "none");
  trainer_->step(weights, kEmbed);
  if (GetParam().encoding != Encoding::kCompact && !in_full()) {
    expect_ok(trainer_->publish_live());
    EXPECT_FALSE(noted("without capture"));
  }
  expect_published(weights);
  EXPECT_TRUE(noted("'model.embed.weight'"));
}

TEST_P(LivePublisher, RefusesWeightsThatMoved) {
  open(base_);
  trainer_->live(0).bytes(0) = std::vector<std::byte>(trainer_->live(0).bytes(0));
  for (const Status& status : trainer_->publish_live()) {
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status.to_string();
    EXPECT_NE(status.message().find("does not lie where it lay"), std::string::npos);
  }
}

// To bfloat16 from float32, as an optimizer writes it; and to a type that is never rounded to.
TEST(LiveCapture, RoundsFloat32AsItIsWritten) {
  std::mt19937_64 random(3);
  Weights base{{"w", {DType::kBF16, {1300, 2001}, {}}}};
  std::vector<std::uint32_t> master(1300 * 2001);  // several pieces
  for (std::uint32_t& value : master) {
    value = static_cast<std::uint32_t>(0x3e000000U + random() % 0x01000000U);
  }
  const auto written = [&] {
    std::vector<std::byte> bytes(master.size() * 2);
    for (std::size_t i = 0; i < master.size(); ++i) {
      const std::uint16_t bits = bf16_of_f32(master[i]);
      std::memcpy(bytes.data() + 2 * i, &bits, 2);
    }
    return bytes;
  };
  base.at("w").bytes = written();
  PublisherOptions options = quick_options();
  options.keep_snapshot = false;
  LoopbackHub hub({}, 1);
  Trainer trainer(hub, 1, options, base);
  expect_ok(trainer.opened());
  Rollout rollout(hub, base);
  for (int step = 0; step < 3; ++step) {
    for (std::uint32_t& value : master) value += static_cast<std::uint32_t>(random() % 700);
    const Publisher::NewTensor value{0, reinterpret_cast<const std::byte*>(master.data()),
                                     DType::kF32};
    ASSERT_TRUE(trainer.rank(0).capture({&value, 1}).ok());
    std::ranges::copy(written(), trainer.live(0).bytes(0).begin());
    expect_ok(trainer.publish_live());
    EXPECT_EQ(trainer.report().encoding, Encoding::kDeltas);
    EXPECT_LT(trainer.report().changed_units, 40'000U);
    EXPECT_TRUE(trainer.report().notes.empty()) << trainer.report().notes.front();
    ASSERT_EQ(rollout.follow().to_string(), "ok");
    Weights weights = base;
    weights.at("w").bytes = written();
    EXPECT_TRUE(rollout.holds(weights));
  }
  const Publisher::NewTensor half{0, nullptr, DType::kF16};
  EXPECT_EQ(trainer.rank(0).capture({&half, 1}).code(), StatusCode::kUnsupported);
  const Publisher::NewTensor none{7, nullptr, DType::kF32};
  EXPECT_EQ(trainer.rank(0).capture({&none, 1}).code(), StatusCode::kInvalidArgument);
}

// The bits of a NaN cannot be predicted: those of torch depend on the processor and on strides.
// Here not even a sweep finds them.
TEST(LiveCapture, SendsTheBitsThatWereWrittenForANaN) {
  constexpr std::size_t kUnits = 3 * 700;
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    const auto rounded = dtype == DType::kBF16 ? bf16_of_f32 : f16_of_f32;
    std::mt19937_64 random(7);
    std::vector<std::uint32_t> master(kUnits);
    for (std::uint32_t& value : master) {
      value = static_cast<std::uint32_t>(0x3e000000U + random() % 0x01000000U);
    }
    Weights weights{{"w", {dtype, {3, 700}, std::vector<std::byte>(2 * kUnits)}}};
    const auto write = [&](std::size_t unit, std::uint16_t bits) {
      std::memcpy(weights.at("w").bytes.data() + 2 * unit, &bits, 2);
    };
    for (std::size_t i = 0; i < kUnits; ++i) write(i, rounded(master[i]));
    PublisherOptions options = quick_options();
    options.keep_snapshot = false;
    options.sweep_every = 0;
    LoopbackHub hub({}, 1);
    Trainer trainer(hub, 1, options, weights);
    expect_ok(trainer.opened());
    Rollout rollout(hub, weights);
    // From a number to a NaN, from one NaN to another, to the NaN that rounding gives, and back.
    for (const std::uint32_t bits :
         {0x7fffU, 0xffffU, 0x7fc0U, 0x7e00U, 0xfe01U, 0x7fc0U, 0x7fc1U, 0x7e00U, 0x7e01U, 0U}) {
      master[kUnits / 2] = bits != 0 ? 0x7f800001U + bits : 0x3e123456U;
      master[3] += 0x10000;
      const Publisher::NewTensor value{0, reinterpret_cast<const std::byte*>(master.data()),
                                       DType::kF32};
      ASSERT_TRUE(trainer.rank(0).capture({&value, 1}).ok());
      write(3, rounded(master[3]));
      write(kUnits / 2, bits != 0 ? static_cast<std::uint16_t>(bits) : rounded(0x3e123456U));
      std::ranges::copy(weights.at("w").bytes, trainer.live(0).bytes(0).begin());
      expect_ok(trainer.publish_live());
      EXPECT_TRUE(trainer.report().notes.size() <= 1);
      ASSERT_EQ(rollout.follow().to_string(), "ok");
      EXPECT_TRUE(rollout.holds(weights)) << info(dtype).name << " " << std::hex << bits;
    }
  }
}

TEST(LiveCapture, NeedsAPublisherWithoutASnapshot) {
  LoopbackHub hub({}, 1);
  Trainer trainer(hub, 1, quick_options(), random_weights(1));
  expect_ok(trainer.opened());
  EXPECT_EQ(trainer.rank(0).capture({}).code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace driftless
