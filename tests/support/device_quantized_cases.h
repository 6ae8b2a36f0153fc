// SPDX-License-Identifier: Apache-2.0
// Tests of publishers of bfloat16 weights on a GPU, for a base with FP8 blocks or INT4 groups:
// receivers must hold what the reference computes from the same weights in host memory. Each test
// program that has a GPU, or a stand-in of one, includes this file once and defines
// gpu_under_test().
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "support/fp8_base.h"
#include "support/loopback_job.h"
#include "support/temp_dir.h"

namespace driftless::testing {

struct GpuUnderTest {
  std::vector<SnapshotPlace> snapshots;  // beside kNone
  std::function<Result<std::shared_ptr<PublisherDevice>>(const DeviceOptions&)> open;
  PlaceBytes place;  // a copy there
  // Runs after the work that was queued on the default stream; done when it returns.
  std::function<void(std::byte*, std::span<const std::byte>)> write;
};
[[nodiscard]] const GpuUnderTest& gpu_under_test();

inline std::shared_ptr<PublisherDevice> open_gpu(SnapshotPlace snapshot) {
  DeviceOptions options;
  options.snapshot = snapshot;
  options.slice_bytes = 1 << 20;
  auto opened = gpu_under_test().open(options);
  EXPECT_TRUE(opened.ok()) << opened.status().to_string();
  return opened.ok() ? *opened : nullptr;
}

// Matrices at multiples of 16 bytes and elsewhere, each with more than one block.
inline Weights gpu_matrices(std::uint64_t seed) {
  Weights weights = bf16_matrices(seed);
  std::mt19937_64 random(seed + 1);
  std::normal_distribution<float> near(0, 0.02F);
  const auto add = [&](const std::string& name, std::vector<std::uint64_t> shape) {
    TestTensor made = random_tensor(DType::kBF16, std::move(shape), random);
    for (std::size_t i = 0; i < made.bytes.size() / 2; ++i) {
      bf16_weight(made, i) = bf16_of_f32(std::bit_cast<std::uint32_t>(near(random)));
    }
    weights[name] = std::move(made);
  };
  add("m.wide.weight", {520, 1032});
  add("m.groups.weight", {520, 2048});  // more than LiveMatrices copies at a time in INT4
  return weights;
}

// The first tensors that differ, and where: enough to repair from a log.
inline void expect_same(Rollout& rollout, const Weights& expected, const std::string& when) {
  if (rollout.holds(expected)) return;
  for (const auto& [name, tensor] : expected) {
    const std::span<const std::byte> held = rollout.held(name);
    if (held.size() != tensor.bytes.size()) {
      ADD_FAILURE() << when << ": '" << name << "' has " << held.size() << " bytes";
      continue;
    }
    std::size_t differing = 0, first = held.size();
    for (std::size_t i = 0; i < held.size(); ++i) {
      if (held[i] == tensor.bytes[i]) continue;
      if (differing++ == 0) first = i;
    }
    if (differing == 0) continue;
    ADD_FAILURE() << when << ": '" << name << "' differs in " << differing << " of " << held.size()
                  << " bytes, first in byte " << first << ": " << std::hex
                  << std::to_integer<int>(held[first]) << ", not "
                  << std::to_integer<int>(tensor.bytes[first]);
  }
}

// --- with a snapshot -----------------------------------------------------------------------------

struct OnGpuWay {
  SnapshotPlace snapshot;
  QuantizeRule rule = QuantizeRule::kLinear;
  Encoding encoding = Encoding::kDeltas;
  unsigned ranks = 1;
  int cut = -1;  // between ranks, by rows (0) or columns (1)
  unsigned int4_group = 0;

  [[nodiscard]] BaseKind kind() const { return {rule, int4_group}; }
};

class QuantizedOnGpu : public ::testing::TestWithParam<OnGpuWay> {
 protected:
  void SetUp() override {
    const OnGpuWay& way = GetParam();
    const auto& there = gpu_under_test().snapshots;
    if (std::ranges::find(there, way.snapshot) == there.end()) {
      GTEST_SKIP() << "no snapshot there: " << to_string(way.snapshot);
    }
    Trainer::offer_as([way](const Weights& weights, unsigned rank) {
      MemorySource source({}, 4);
      source.lie_on_device(gpu_under_test().place);
      for (const auto& [name, tensor] : weights) {
        const bool cut = way.cut >= 0 && has_fp8_blocks(tensor) && !tensor.bytes.empty();
        if (cut) {
          source.add(
              name, tensor,
              part_of({{0, 0}, tensor.shape}, static_cast<std::size_t>(way.cut), rank, way.ranks));
        } else if (rank == 0) {
          source.add(name, tensor);
        }
      }
      return source;
    });
    options_.encoding = way.encoding;
    options_.quantize.rule = way.rule;
    options_.base_checkpoint = dir_.file("base");
    options_.full_above_density = 0.6;
    options_.deadline = std::chrono::seconds(30);
    base_ = way.kind().made_of(weights_);
    write_base(options_.base_checkpoint, base_, way.kind());
  }
  ~QuantizedOnGpu() override { Trainer::offer_as({}); }

  void open() {
    trainer_.reset();
    std::vector<std::shared_ptr<PublisherDevice>> devices;
    for (unsigned rank = 0; rank < GetParam().ranks; ++rank) {
      devices.push_back(open_gpu(GetParam().snapshot));
    }
    trainer_ = std::make_unique<Trainer>(hub_, GetParam().ranks, options_, weights_, devices);
    for (const Status& status : trainer_->opened()) {
      ASSERT_TRUE(status.ok()) << status.to_string();
    }
    if (!rollout_) rollout_.emplace(hub_, base_);
  }
  void expect_published(const Weights& weights, const std::string& when) {
    for (const Status& status : trainer_->publish(weights)) {
      ASSERT_TRUE(status.ok()) << when << ": " << status.to_string();
    }
    const Deadline deadline = Deadline::after(std::chrono::seconds(30));
    while (rollout_->state().id.version < trainer_->report().version && !deadline.expired()) {
      ASSERT_EQ(rollout_->follow().to_string(), "ok") << when;
    }
    expect_same(*rollout_, GetParam().kind().made_of(weights), when);
    EXPECT_EQ(rollout_->state().digest, trainer_->rank(0).digest()) << when;
  }

  TempDir dir_{TempDir::Where::kMemory};
  PublisherOptions options_ = quick_options();
  LoopbackHub hub_{{}, GetParam().ranks};
  Weights weights_ = gpu_matrices(5), base_;
  std::unique_ptr<Trainer> trainer_;
  std::optional<Rollout> rollout_;
};

INSTANTIATE_TEST_SUITE_P(
    Ways, QuantizedOnGpu,
    ::testing::Values(
        OnGpuWay{SnapshotPlace::kPinned},
        OnGpuWay{SnapshotPlace::kPinned, QuantizeRule::kUe8m0, Encoding::kIndices},
        OnGpuWay{SnapshotPlace::kPinned, QuantizeRule::kLinearDiv, Encoding::kDeltas, 2, 0},
        OnGpuWay{SnapshotPlace::kDevice},
        OnGpuWay{SnapshotPlace::kDevice, QuantizeRule::kUe8m0, Encoding::kCompact},
        OnGpuWay{SnapshotPlace::kDevice, QuantizeRule::kLinear, Encoding::kDeltasZstd, 2, 0},
        OnGpuWay{SnapshotPlace::kDevice, QuantizeRule::kLinearDiv, Encoding::kDeltas, 3, 1},
        OnGpuWay{SnapshotPlace::kPinned, QuantizeRule::kLinear, Encoding::kIndices, 2, 0, 32},
        OnGpuWay{SnapshotPlace::kDevice, QuantizeRule::kLinear, Encoding::kDeltas, 1, -1, 128},
        OnGpuWay{SnapshotPlace::kDevice, QuantizeRule::kLinear, Encoding::kDeltas, 2, 1, 32}));

TEST_P(QuantizedOnGpu, PublishesWhatTheHostWould) {
  ASSERT_NO_FATAL_FAILURE(open());
  Weights weights = weights_;
  for (std::uint64_t step = 1; step <= 5; ++step) {
    weights = stepped(weights, step);
    if (step == 3) {  // a version that fails
      trainer_->road(0).arm(RoadFault::kSeal);
      for (const Status& status : trainer_->publish(weights)) EXPECT_FALSE(status.ok());
      weights = stepped(weights, 33);
    }
    ASSERT_NO_FATAL_FAILURE(expect_published(weights, concat("step ", step)));
    EXPECT_EQ(trainer_->report().encoding, GetParam().encoding) << step;
  }
  ASSERT_NO_FATAL_FAILURE(expect_published(weights, "nothing changed"));
  EXPECT_EQ(trainer_->report().changed_units, 0U);
}

TEST_P(QuantizedOnGpu, ResumesAndSendsDenseVersionsWhole) {
  ASSERT_NO_FATAL_FAILURE(open());
  Weights weights = stepped(weights_, 2);
  ASSERT_NO_FATAL_FAILURE(expect_published(weights, "the first"));
  ASSERT_NO_FATAL_FAILURE(open());
  ASSERT_TRUE(trainer_->rank(0).resumed());
  weights = stepped(weights, 3);
  ASSERT_NO_FATAL_FAILURE(expect_published(weights, "resumed"));
  weights = gpu_matrices(7);
  ASSERT_NO_FATAL_FAILURE(expect_published(weights, "dense"));
  EXPECT_EQ(trainer_->report().encoding, Encoding::kFull);
  ASSERT_NO_FATAL_FAILURE(expect_published(stepped(weights, 4), "after a dense one"));
  EXPECT_EQ(trainer_->report().encoding, GetParam().encoding);
}

// --- without one ---------------------------------------------------------------------------------

// Weights that stay where they are, on the GPU.
class PlacedWeights final : public WeightSource {
 public:
  explicit PlacedWeights(Weights weights) : weights_(std::move(weights)) {
    for (const auto& [name, tensor] : weights_) {
      tensors_.push_back(*TensorSpec::make(name, tensor.dtype, tensor.shape));
      there_.push_back(tensor.bytes.empty() ? nullptr : gpu_under_test().place(tensor.bytes));
    }
  }
  [[nodiscard]] std::span<const TensorSpec> tensors() const override { return tensors_; }
  [[nodiscard]] Status visit(
      const std::function<Status(std::span<const OfferedTensor>)>& use) override {
    std::vector<OfferedTensor> all;
    for (std::size_t i = 0; i < there_.size(); ++i) {
      all.push_back({i, there_[i].get(), MemoryKind::kDevice});
    }
    return use(all);
  }
  // An optimizer's step; all of it is captured, except for the tensor `unseen`.
  Status step(Publisher& publisher, const Weights& to, const std::string& unseen = "nothing") {
    std::vector<std::shared_ptr<std::byte>> held;
    std::vector<Publisher::NewTensor> values;
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      const std::vector<std::byte>& bytes = to.at(tensors_[i].name).bytes;
      if (bytes.empty() || tensors_[i].name == unseen) continue;
      held.push_back(gpu_under_test().place(bytes));
      values.push_back({i, held.back().get(), tensors_[i].dtype, MemoryKind::kDevice});
    }
    const Status captured = publisher.capture(values);
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      const std::vector<std::byte>& bytes = to.at(tensors_[i].name).bytes;
      if (!bytes.empty()) gpu_under_test().write(there_[i].get(), bytes);
    }
    weights_ = to;
    return captured;
  }
  [[nodiscard]] const Weights& weights() const { return weights_; }

 private:
  Weights weights_;
  std::vector<TensorSpec> tensors_;
  std::vector<std::shared_ptr<std::byte>> there_;
};

class QuantizedLiveOnGpu : public ::testing::TestWithParam<BaseKind> {
 protected:
  void SetUp() override {
    options_.quantize.rule = GetParam().rule;
    options_.base_checkpoint = dir_.file("base");
    options_.full_above_density = 0.6;
    options_.deadline = std::chrono::seconds(30);
    options_.keep_snapshot = false;
    base_ = GetParam().made_of(at_first_);
    write_base(options_.base_checkpoint, base_, GetParam());
  }
  void open() {
    publisher_.reset();
    mail_ = std::make_unique<LoopbackHub>(LoopbackOptions{}, 1);
    group_ = mail_->group(0);
    options_.device = open_gpu(SnapshotPlace::kNone);
    // The base is read from host memory: the bytes that it was made of.
    MemorySource base(at_first_);
    auto opened = Publisher::open(options_, *group_, road_, history_.get(), base, &weights_);
    ASSERT_TRUE(opened.ok()) << opened.status().to_string();
    publisher_ = std::move(*opened);
    if (!rollout_) rollout_.emplace(hub_, base_);
  }
  void publish(const std::string& when) {
    auto report = publisher_->publish(weights_);
    ASSERT_TRUE(report.ok()) << when << ": " << report.status().to_string();
    report_ = *report;
    ASSERT_EQ(rollout_->follow().to_string(), "ok") << when;
    ASSERT_EQ(rollout_->state().id.version, report_.version) << when;
    expect_same(*rollout_, GetParam().made_of(weights_.weights()), when);
    EXPECT_EQ(rollout_->state().digest, publisher_->digest()) << when;
  }
  void step(const Weights& to, const std::string& unseen = "nothing") {
    const Status captured = weights_.step(*publisher_, to, unseen);
    EXPECT_TRUE(captured.ok()) << captured.to_string();
  }

  TempDir dir_{TempDir::Where::kMemory};
  PublisherOptions options_ = quick_options();
  LoopbackHub hub_{{}, 1};
  std::unique_ptr<LoopbackHub> mail_;
  std::unique_ptr<Group> group_;
  FaultyRoad road_{hub_.sender(0)};
  std::unique_ptr<ReceiveRoad> history_ = hub_.receiver();
  Weights at_first_ = gpu_matrices(5), base_;
  PlacedWeights weights_{at_first_};
  std::unique_ptr<Publisher> publisher_;
  std::optional<Rollout> rollout_;
  PublishReport report_;
};

INSTANTIATE_TEST_SUITE_P(Kinds, QuantizedLiveOnGpu,
                         ::testing::Values(BaseKind{}, BaseKind{QuantizeRule::kLinearDiv},
                                           BaseKind{QuantizeRule::kUe8m0},
                                           BaseKind{QuantizeRule::kLinear, 32},
                                           BaseKind{QuantizeRule::kLinear, 128}));

TEST_P(QuantizedLiveOnGpu, PublishesWhatWasCaptured) {
  ASSERT_NO_FATAL_FAILURE(open());
  for (std::uint64_t number = 1; number <= 6; ++number) {
    step(stepped(weights_.weights(), number));
    if (number == 3) {  // a version that fails, and more on top of it
      road_.arm(RoadFault::kSeal);
      EXPECT_FALSE(publisher_->publish(weights_).ok());
      step(stepped(weights_.weights(), 33));
    }
    ASSERT_NO_FATAL_FAILURE(publish(concat("step ", number)));
    EXPECT_EQ(report_.encoding, Encoding::kDeltas) << number;
    EXPECT_GT(report_.changed_units, 0U) << number;
  }
  ASSERT_NO_FATAL_FAILURE(publish("nothing changed"));
  EXPECT_EQ(report_.changed_units, 0U);
}

// A change that is changed back is not published.
TEST_P(QuantizedLiveOnGpu, DropsWhatIsAsItWas) {
  ASSERT_NO_FATAL_FAILURE(open());
  step(stepped(at_first_, 7));
  step(at_first_);
  ASSERT_NO_FATAL_FAILURE(publish("changed back"));
  EXPECT_EQ(report_.changed_units, 0U);
}

TEST_P(QuantizedLiveOnGpu, FindsWhatWasNotCaptured) {
  ASSERT_NO_FATAL_FAILURE(open());
  for (std::uint64_t number = 4; number < 7; ++number) {
    step(stepped(weights_.weights(), number), "m.wide.weight");
    ASSERT_NO_FATAL_FAILURE(publish(concat("unseen in step ", number)));
  }
}

TEST_P(QuantizedLiveOnGpu, FindsWhatWasNotCapturedAndChangesNoCode) {
  ASSERT_NO_FATAL_FAILURE(open());
  Weights weights = changed_below_codes(at_first_, "m.d.weight", GetParam());
  step(weights, "m.d.weight");
  ASSERT_NO_FATAL_FAILURE(publish("unseen"));
  EXPECT_EQ(report_.changed_units, 0U);
  EXPECT_NE(::testing::PrintToString(report_.notes).find("codes and scales are as they were"),
            std::string::npos);
  bf16_weight(weights.at("m.d.weight"), 300) = 0x3f00;  // 0.5: its block is coded anew
  step(weights);
  ASSERT_NO_FATAL_FAILURE(publish("coded anew"));
}

TEST_P(QuantizedLiveOnGpu, SendsDenseVersionsWholeAndAnchors) {
  ASSERT_NO_FATAL_FAILURE(open());
  step(gpu_matrices(8));
  ASSERT_NO_FATAL_FAILURE(publish("dense"));
  EXPECT_EQ(report_.encoding, Encoding::kFull);
  publisher_->request_anchor();
  step(stepped(weights_.weights(), 2));
  ASSERT_NO_FATAL_FAILURE(publish("with an anchor"));
  EXPECT_TRUE(report_.anchor) << ::testing::PrintToString(report_.notes);
  Rollout late(hub_, std::nullopt);
  EXPECT_EQ(late.follow().to_string(), "ok");
  EXPECT_TRUE(late.holds(GetParam().made_of(weights_.weights())));
}

TEST_P(QuantizedLiveOnGpu, Resumes) {
  ASSERT_NO_FATAL_FAILURE(open());
  step(stepped(weights_.weights(), 2));
  ASSERT_NO_FATAL_FAILURE(publish("the first"));
  ASSERT_NO_FATAL_FAILURE(open());
  ASSERT_TRUE(publisher_->resumed());
  step(stepped(weights_.weights(), 3));
  ASSERT_NO_FATAL_FAILURE(publish("resumed"));
}

}  // namespace driftless::testing
