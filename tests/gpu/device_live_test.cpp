// SPDX-License-Identifier: Apache-2.0
// A publisher without a snapshot whose weights are on the GPU. Receivers get the changes that
// capture() saw, and also those that it did not see.
#include <algorithm>
#include <chrono>
#include <memory>
#include <thread>

#include "gpu/device.h"
#include "plugin/device/device_factories.h"
#include "plugin/publish/publisher.h"
#include "plugin/receive/receiver.h"
#include "support/faulty_road.h"
#include "support/loopback_job.h"
#include "support/loopback_road.h"

namespace driftless {
namespace {

using namespace driftless::testing;

// bfloat16 weights on the GPU with float32 main weights, in two blocks that are not aligned; and a
// float32 tensor that nobody captures.
class GpuTrainer final : public WeightSource {
 public:
  static constexpr std::uint64_t kRows = 1700, kColumns = 1001, kFirst = 333;

  explicit GpuTrainer(std::uint64_t seed) : random_(seed), main_(kRows * kColumns), bias_(77) {
    for (std::uint32_t& value : main_) {
      value = static_cast<std::uint32_t>(0x3d000000U + random_() % 0x02000000U);
    }
    specs_ = {*TensorSpec::make("bias", DType::kF32, {77}),
              *TensorSpec::make("w", DType::kBF16, {kRows, kColumns}),
              *TensorSpec::make("w", DType::kBF16, {kRows, kColumns})};
    boxes_ = {{}, {{0, 0}, {kFirst, kColumns}}, {{kFirst, 0}, {kRows - kFirst, kColumns}}};
    write();
  }
  [[nodiscard]] std::span<const TensorSpec> tensors() const override { return specs_; }
  [[nodiscard]] std::span<const TensorBox> boxes() const override { return boxes_; }
  [[nodiscard]] bool watched(std::size_t tensor) const override { return tensor == 0; }
  [[nodiscard]] Status visit(
      const std::function<Status(std::span<const OfferedTensor>)>& use) override {
    const OfferedTensor all[] = {
        {0, bias_dev_.data(), MemoryKind::kDevice},
        {1, weight_dev_.data(), MemoryKind::kDevice},
        {2, weight_dev_.data() + kFirst * kColumns * 2, MemoryKind::kDevice}};
    return use(all);
  }

  // A step of the optimizer: main weights, capture() unless `seen` is false, weights.
  Status step(Publisher& publisher, std::uint32_t most, bool seen = true) {
    for (std::uint32_t& value : main_) value += static_cast<std::uint32_t>(random_() % most);
    for (std::uint32_t& value : bias_) value += 1;
    must(cudaMemcpy(main_dev_.data(), main_.data(), main_.size() * 4, cudaMemcpyHostToDevice));
    const Status captured = seen ? publisher.capture(new_values()) : Status();
    write();
    return captured;
  }
  // Queues everything on a busy stream; no call waits.
  Status step_queued(Publisher& publisher, std::uint32_t most, cudaStream_t stream) {
    must(cudaLaunchHostFunc(
        stream, [](void*) { std::this_thread::sleep_for(std::chrono::milliseconds(50)); },
        nullptr));
    for (std::uint32_t& value : main_) value += static_cast<std::uint32_t>(random_() % most);
    const std::vector<std::uint16_t> units = narrow();
    queued_.emplace(main_.size() * 6);
    std::memcpy(queued_->data(), main_.data(), main_.size() * 4);
    std::memcpy(queued_->data() + main_.size() * 4, units.data(), units.size() * 2);
    must(cudaMemcpyAsync(main_dev_.data(), queued_->data(), main_.size() * 4,
                         cudaMemcpyHostToDevice, stream));
    const Status captured = publisher.capture(new_values(), stream);
    must(cudaMemcpyAsync(weight_dev_.data(), queued_->data() + main_.size() * 4, units.size() * 2,
                         cudaMemcpyHostToDevice, stream));
    return captured;
  }
  void diverge(std::size_t unit) { main_[unit] = 0xffc00000U; }
  [[nodiscard]] Weights weights() const {
    Weights all;
    all["bias"] = {DType::kF32, {77}, bytes_of(bias_)};
    all["w"] = {DType::kBF16, {kRows, kColumns}, bytes_of(narrow())};
    return all;
  }

 private:
  // Pinned.
  class HostBytes {
   public:
    explicit HostBytes(std::uint64_t size) { must(cudaMallocHost(&data_, size)); }
    HostBytes(const HostBytes&) = delete;
    HostBytes& operator=(const HostBytes&) = delete;
    ~HostBytes() { cudaFreeHost(data_); }
    [[nodiscard]] std::byte* data() const { return static_cast<std::byte*>(data_); }

   private:
    void* data_ = nullptr;
  };

  [[nodiscard]] std::vector<Publisher::NewTensor> new_values() const {
    return {{1, main_dev_.data(), DType::kF32, MemoryKind::kDevice},
            {2, main_dev_.data() + kFirst * kColumns * 4, DType::kF32, MemoryKind::kDevice}};
  }
  template <typename Value>
  static std::vector<std::byte> bytes_of(const std::vector<Value>& values) {
    const auto bytes = std::as_bytes(std::span(values));
    return {bytes.begin(), bytes.end()};
  }
  [[nodiscard]] std::vector<std::uint16_t> narrow() const {
    std::vector<std::uint16_t> units;
    for (const std::uint32_t value : main_) {
      units.push_back(is_nan_f32(value) ? 0x7fff : bf16_of_f32(value));  // as CUDA rounds
    }
    return units;
  }
  void write() {
    const std::vector<std::uint16_t> units = narrow();
    must(cudaMemcpy(weight_dev_.data(), units.data(), units.size() * 2, cudaMemcpyHostToDevice));
    must(cudaMemcpy(bias_dev_.data(), bias_.data(), bias_.size() * 4, cudaMemcpyHostToDevice));
    must(cudaDeviceSynchronize());
  }

  std::mt19937_64 random_;
  std::vector<std::uint32_t> main_, bias_;
  DeviceBytes weight_dev_{kRows * kColumns * 2}, bias_dev_{77 * 4}, main_dev_{kRows * kColumns * 4};
  std::optional<HostBytes> queued_;
  std::vector<TensorSpec> specs_;
  std::vector<TensorBox> boxes_;
};

class LiveOnGpu : public ::testing::Test {
 protected:
  void open(const PublisherOptions& like = quick_options()) {
    DeviceOptions gpu;
    gpu.snapshot = SnapshotPlace::kNone;
    auto device = make_publisher_device(gpu);
    ASSERT_TRUE(device.ok()) << device.status().to_string();
    PublisherOptions options = like;
    options.device = *device;
    options.keep_snapshot = false;
    auto opened = Publisher::open(options, *group_, road_, history_.get(), trainer_);
    ASSERT_TRUE(opened.ok()) << opened.status().to_string();
    publisher_ = std::move(*opened);
    rollout_.emplace(hub_, trainer_.weights());
  }
  PublishReport publish() {
    auto report = publisher_->publish(trainer_);
    EXPECT_TRUE(report.ok()) << report.status().to_string();
    EXPECT_EQ(rollout_->follow().to_string(), "ok");
    EXPECT_TRUE(rollout_->holds(trainer_.weights()));
    return report.ok() ? *report : PublishReport();
  }

  LoopbackHub hub_{{}, 1};
  LoopbackHub mail_{{}, 1};
  std::unique_ptr<Group> group_ = mail_.group(0);
  FaultyRoad road_{hub_.sender(0)};
  std::unique_ptr<ReceiveRoad> history_ = hub_.receiver();
  GpuTrainer trainer_{5};
  std::unique_ptr<Publisher> publisher_;
  std::optional<Rollout> rollout_;
};

class LiveEncodings : public LiveOnGpu, public ::testing::WithParamInterface<Encoding> {};
INSTANTIATE_TEST_SUITE_P(All, LiveEncodings,
                         ::testing::Values(Encoding::kDeltas, Encoding::kIndices,
                                           Encoding::kDeltasZstd, Encoding::kCompact));

// `compact` is coded from tensors in host memory, so it becomes deltas.
TEST_P(LiveEncodings, ReceiversGetWhatWasCaptured) {
  PublisherOptions options = quick_options();
  options.encoding = GetParam();
  options.anchor_every = 2;
  open(options);
  for (int version = 1; version <= 4; ++version) {
    ASSERT_TRUE(trainer_.step(*publisher_, 900).ok());
    if (version > 2) {
      ASSERT_TRUE(trainer_.step(*publisher_, 900).ok());
    }
    const PublishReport report = publish();
    EXPECT_EQ(report.encoding, GetParam() == Encoding::kCompact ? Encoding::kDeltas : GetParam());
    EXPECT_GT(report.changed_units, 1000U);
    EXPECT_EQ(report.live.resent_tensors, 0U);
    EXPECT_EQ(report.anchor, version % 2 == 0);
  }
}

TEST_F(LiveOnGpu, AFailedVersionKeepsItsChanges) {
  open();
  ASSERT_TRUE(trainer_.step(*publisher_, 900).ok());
  road_.arm(RoadFault::kFlush);
  EXPECT_FALSE(publisher_->publish(trainer_).ok());
  ASSERT_TRUE(trainer_.step(*publisher_, 900).ok());
  EXPECT_EQ(publish().encoding, Encoding::kDeltas);
}

TEST_F(LiveOnGpu, AWriteThatWasNotCapturedIsFound) {
  open();
  ASSERT_TRUE(trainer_.step(*publisher_, 900, false).ok());
  const PublishReport report = publish();
  EXPECT_GT(report.live.resent_tensors, 0U);
  EXPECT_NE(report.notes.front().find("tensor 'w' of publisher rank 0 was written without"),
            std::string::npos);
  ASSERT_TRUE(trainer_.step(*publisher_, 900).ok());
  EXPECT_TRUE(publish().notes.empty());
}

// No call waits: the comparison and the version run on the stream after its earlier work.
TEST_F(LiveOnGpu, CapturesOnTheTrainersStream) {
  open();
  ASSERT_TRUE(trainer_.step(*publisher_, 900).ok());
  publish();
  cudaStream_t stream = nullptr;
  must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  for (int version = 0; version < 3; ++version) {
    const auto begin = std::chrono::steady_clock::now();
    ASSERT_TRUE(trainer_.step_queued(*publisher_, 900, stream).ok());
    ASSERT_TRUE(publisher_->observe(trainer_, stream).ok());
    EXPECT_EQ(cudaStreamQuery(stream), cudaErrorNotReady)
        << "waited "
        << std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() << " s";
    const PublishReport report = publish();
    EXPECT_EQ(report.live.resent_tensors, 0U);
    EXPECT_GT(report.changed_units, 1000U);
  }
  must(cudaStreamDestroy(stream));
}

// Not all changes of a far larger step fit. The tensor goes out whole, and the next time there is
// room.
TEST_F(LiveOnGpu, AStepOfFarMoreChangesGoesOutWhole) {
  PublisherOptions options = quick_options();
  options.full_above_density = 1;
  open(options);
  ASSERT_TRUE(trainer_.step(*publisher_, 2).ok());
  publish();
  ASSERT_TRUE(trainer_.step(*publisher_, 0x8000).ok());
  EXPECT_EQ(publish().live.resent_tensors, 1U);
  ASSERT_TRUE(trainer_.step(*publisher_, 0x8000).ok());
  EXPECT_EQ(publish().live.resent_tensors, 0U);
}

// The call cannot know how many changes there will be; the next version sweeps and finds them.
TEST_F(LiveOnGpu, ChangesThatDoNotFitInTheBackgroundGoWithTheNextVersion) {
  PublisherOptions options = quick_options();
  options.full_above_density = 1;
  open(options);
  ASSERT_TRUE(trainer_.step(*publisher_, 2).ok());
  publish();
  ASSERT_TRUE(trainer_.step(*publisher_, 0x8000).ok());
  ASSERT_TRUE(publisher_->observe(trainer_, nullptr, true).ok());
  EXPECT_EQ(publisher_->publish(trainer_).status().code(), StatusCode::kIncomplete);
  ASSERT_TRUE(publisher_->observe(trainer_, nullptr, true).ok());
  EXPECT_EQ(publish().live.resent_tensors, 1U);
}

TEST_F(LiveOnGpu, OtherWeightsInTheBackgroundFailTheVersion) {
  open();
  ASSERT_TRUE(trainer_.step(*publisher_, 900).ok());
  ASSERT_TRUE(publisher_->observe(trainer_, nullptr, true).ok());
  ASSERT_TRUE(trainer_.step(*publisher_, 900, false).ok());
  EXPECT_EQ(publisher_->publish(trainer_).status().code(), StatusCode::kMismatch);
  ASSERT_TRUE(publisher_->observe(trainer_, nullptr, true).ok());
  EXPECT_GT(publish().live.resent_tensors, 0U);
  // After a tensor that was sent whole the call sweeps: nothing is read behind it, and the version
  // is the weights of the call.
  ASSERT_TRUE(trainer_.step(*publisher_, 900).ok());
  const Weights called = trainer_.weights();
  ASSERT_TRUE(publisher_->observe(trainer_, nullptr, true).ok());
  ASSERT_TRUE(trainer_.step(*publisher_, 900, false).ok());
  const auto report = publisher_->publish(trainer_);
  ASSERT_TRUE(report.ok()) << report.status().to_string();
  EXPECT_EQ(rollout_->follow().to_string(), "ok");
  EXPECT_TRUE(rollout_->holds(called));
}

// Also if one NaN replaces another; no sweep is needed.
TEST_F(LiveOnGpu, SendsTheBitsThatWereWrittenForANaN) {
  PublisherOptions options = quick_options();
  options.sweep_every = 0;
  options.full_above_density = 1;
  open(options);
  for (int version = 0; version < 3; ++version) {
    trainer_.diverge(3 + GpuTrainer::kColumns * 900);
    if (version == 1) trainer_.diverge(GpuTrainer::kColumns * GpuTrainer::kRows - 1);
    ASSERT_TRUE(trainer_.step(*publisher_, 900).ok());
    EXPECT_EQ(publish().live.resent_tensors, 1U);
  }
}

TEST_F(LiveOnGpu, ADenseStepGoesOutInFull) {
  open();
  ASSERT_TRUE(trainer_.step(*publisher_, 0x400000).ok());
  EXPECT_EQ(publish().encoding, Encoding::kFull);
  ASSERT_TRUE(trainer_.step(*publisher_, 900).ok());
  EXPECT_EQ(publish().encoding, Encoding::kDeltas);
}

TEST_F(LiveOnGpu, WhatCannotBeKeptGoesOutWhole) {
  PublisherOptions options = quick_options();
  options.capture_bytes = 1000;
  options.full_above_density = 1;
  open(options);
  ASSERT_TRUE(trainer_.step(*publisher_, 900).ok());
  const PublishReport report = publish();
  EXPECT_EQ(report.encoding, Encoding::kDeltas);
  EXPECT_EQ(report.live.resent_tensors, 2U);  // of the other one there is no room, either
}

// After a restart with the same weights a delta follows.
TEST_F(LiveOnGpu, GoesOnAfterARestart) {
  open();
  ASSERT_TRUE(trainer_.step(*publisher_, 900).ok());
  publish();
  publisher_.reset();
  GpuTrainer at_base(5);
  DeviceOptions gpu;
  gpu.snapshot = SnapshotPlace::kNone;
  PublisherOptions options = quick_options();
  options.device = *make_publisher_device(gpu);
  options.keep_snapshot = false;
  auto opened = Publisher::open(options, *group_, road_, history_.get(), at_base, &trainer_);
  ASSERT_TRUE(opened.ok()) << opened.status().to_string();
  publisher_ = std::move(*opened);
  EXPECT_TRUE(publisher_->resumed());
  ASSERT_TRUE(trainer_.step(*publisher_, 900).ok());
  EXPECT_EQ(publish().encoding, Encoding::kDeltas);
}

}  // namespace
}  // namespace driftless
