// SPDX-License-Identifier: Apache-2.0
// A publisher with a GPU gives receivers what one without does: over loopback, with the snapshot on
// the device or pinned, weights on either side, every encoding that travels in frames, and faults.
#include "plugin/publish/publisher.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "gpu/device.h"
#include "plugin/device/device_factories.h"
#include "plugin/receive/receiver.h"
#include "support/faulty_road.h"
#include "support/loopback_road.h"
#include "support/published_run.h"
#include "support/weights.h"

namespace driftless {
namespace {

using namespace driftless::testing;

// Weights on the GPU, in batches whose memory goes with them.
class GpuSource final : public WeightSource {
 public:
  explicit GpuSource(const Weights& weights) : weights_(weights) {
    for (const auto& [name, tensor] : weights) {
      tensors_.push_back(*TensorSpec::make(name, tensor.dtype, tensor.shape));
    }
  }
  [[nodiscard]] std::span<const TensorSpec> tensors() const override { return tensors_; }
  [[nodiscard]] Status visit(
      const std::function<Status(std::span<const OfferedTensor>)>& use) override {
    std::vector<DeviceBytes> held;
    std::vector<OfferedTensor> offered;
    std::size_t index = 0;
    for (const auto& [name, tensor] : weights_) {
      if (tensor.bytes.empty()) {
        offered.push_back({index++, nullptr, MemoryKind::kDevice});
      } else if (index % 5 == 4) {  // some stay in host memory
        offered.push_back({index++, tensor.bytes.data(), MemoryKind::kHost});
      } else {
        held.emplace_back(std::span<const std::byte>(tensor.bytes));
        offered.push_back({index++, held.back().data(), MemoryKind::kDevice});
      }
      if (offered.size() < 4 && index < weights_.size()) continue;
      DRIFTLESS_RETURN_IF_ERROR(use(offered));
      offered.clear();
      held.clear();
    }
    return {};
  }

 private:
  const Weights& weights_;
  std::vector<TensorSpec> tensors_;
};

struct World {
  World(SnapshotPlace place, Encoding encoding, Weights base)
      : weights(std::move(base)), held(weights), road(hub.sender(0)), back(hub.receiver()) {
    DeviceOptions gpu;
    gpu.snapshot = place;
    gpu.slice_bytes = 1 << 20;  // tensors are cut
    auto side = make_publisher_device(gpu);
    must(side.status());
    device = *side;
    PublisherOptions options;
    options.encoding = encoding;
    options.buffer_bytes = 64 << 10;
    options.device = device;
    history = hub.receiver();
    GpuSource source(weights);
    auto opened = Publisher::open(options, group, road, history.get(), source);
    must(opened.status());
    publisher = std::move(*opened);
    auto made = make_memory_target(publisher->layout(), pointers(held), VersionId{}, 2);
    must(made.status());
    target = std::move(*made);
    auto receiving = Receiver::open({}, *back, *target, Deadline::after(std::chrono::seconds(10)));
    must(receiving.status());
    receiver = std::move(*receiving);
  }

  [[nodiscard]] Result<PublishReport> publish() {
    GpuSource source(weights);
    return publisher->publish(source);
  }
  void follow() {
    while (target->state().id.version < publisher->version().version) {
      auto staged = receiver->stage(Deadline::after(std::chrono::seconds(10)));
      must(staged.status());
      ASSERT_TRUE(*staged);
      must(receiver->commit().status());
    }
    EXPECT_EQ(target->state().digest, publisher->digest());
    EXPECT_TRUE(same(held, weights));
    // What the manifests say of each tensor.
    const std::vector<Digest>& digests = receiver->tensor_digests();
    ASSERT_EQ(digests.size(), weights.size());
    std::size_t index = 0;
    for (const auto& [name, tensor] : weights) {
      EXPECT_EQ(digests[index++], digest_of({{name, tensor}})) << name;
    }
  }

  Weights weights, held;  // the trainer's, the receiver's
  LoopbackHub hub{{}, 1};
  SoloGroup group;
  FaultyRoad road;
  std::unique_ptr<ReceiveRoad> back, history;
  std::shared_ptr<PublisherDevice> device;
  std::unique_ptr<Publisher> publisher;
  std::unique_ptr<WeightTarget> target;
  std::unique_ptr<Receiver> receiver;
};

Weights mixed_weights() {
  Weights weights = random_weights(5);
  std::mt19937_64 random(3);
  weights["model.large"] = random_tensor(DType::kBF16, {1500, 1000}, random);
  return weights;
}

class GpuPublisher : public ::testing::TestWithParam<std::tuple<SnapshotPlace, Encoding>> {
 protected:
  SnapshotPlace place() const { return std::get<0>(GetParam()); }
  Encoding encoding() const { return std::get<1>(GetParam()); }
  // `compact` is coded with a snapshot on the device; with a pinned one it is not.
  Encoding expected() const {
    const bool coded = encoding() == Encoding::kCompact && place() == SnapshotPlace::kPinned;
    return coded ? Encoding::kDeltas : encoding();
  }
};

TEST_P(GpuPublisher, ReceiversEndWithItsBits) {
  World world(place(), encoding(), mixed_weights());
  for (std::uint64_t step = 1; step <= 6; ++step) {
    world.weights = changed_weights(world.weights, step, step == 4 ? 0.1 : 0.01);
    const auto report = world.publish();
    must(report.status());
    EXPECT_EQ(report->version, step);
    EXPECT_EQ(report->encoding, expected());
    EXPECT_EQ(report->digest, digest_of(world.weights));
    world.follow();
  }
}

TEST_P(GpuPublisher, NothingChangedIsAVersion) {
  World world(place(), encoding(), mixed_weights());
  must(world.publish().status());
  world.follow();
}

TEST_P(GpuPublisher, DenseVersionsGoInFull) {
  World world(place(), encoding(), mixed_weights());
  world.weights = changed_weights(world.weights, 1, 0.9);
  const auto report = world.publish();
  must(report.status());
  EXPECT_EQ(report->encoding, Encoding::kFull);
  world.follow();
  world.weights = changed_weights(world.weights, 2, 0.01);
  must(world.publish().status());
  world.follow();
}

TEST_P(GpuPublisher, WhatFailedIsCarriedByTheNextVersion) {
  World world(place(), encoding(), mixed_weights());
  std::uint64_t step = 0;
  for (const RoadFault fault :
       {RoadFault::kBegin, RoadFault::kCreate, RoadFault::kWrite, RoadFault::kFlush,
        RoadFault::kSeal, RoadFault::kSealUnknown, RoadFault::kSealUnknownNot}) {
    world.weights = changed_weights(world.weights, ++step, 0.01);
    world.road.arm(fault);
    EXPECT_FALSE(world.publish().ok()) << static_cast<int>(fault);
    world.weights = changed_weights(world.weights, ++step, 0.01);
    must(world.publish().status());
    world.follow();
  }
}

TEST_P(GpuPublisher, AnchorsAreWhatItHas) {
  World world(place(), encoding(), mixed_weights());
  world.weights = changed_weights(world.weights, 1, 0.01);
  world.publisher->request_anchor();
  const auto report = world.publish();
  must(report.status());
  EXPECT_TRUE(report->anchor);
  world.follow();
  world.weights = changed_weights(world.weights, 2, 0.01);
  must(world.publish().status());
  must(world.publisher->publish_anchor());
  world.follow();
}

TEST_P(GpuPublisher, ResumesWhereAnotherEnded) {
  World world(place(), encoding(), mixed_weights());
  const Weights base = world.weights;
  for (std::uint64_t step = 1; step <= 2; ++step) {
    world.weights = changed_weights(world.weights, step, 0.01);
    must(world.publish().status());
  }
  PublisherOptions options;
  options.encoding = encoding();
  DeviceOptions gpu;
  gpu.snapshot = place();
  options.device = *make_publisher_device(gpu);
  GpuSource source(base);
  auto again = Publisher::open(options, world.group, world.road, world.history.get(), source);
  must(again.status());
  EXPECT_EQ((*again)->version().version, 2U);
  world.publisher = std::move(*again);
  world.weights = changed_weights(world.weights, 3, 0.01);
  must(world.publish().status());
  world.follow();
}

INSTANTIATE_TEST_SUITE_P(
    All, GpuPublisher,
    ::testing::Combine(::testing::Values(SnapshotPlace::kPinned, SnapshotPlace::kDevice),
                       ::testing::Values(Encoding::kIndices, Encoding::kDeltas,
                                         Encoding::kDeltasZstd, Encoding::kCompact)));

}  // namespace
}  // namespace driftless
