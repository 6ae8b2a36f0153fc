// SPDX-License-Identifier: Apache-2.0
// Receivers get the same from ranks that publish blocks with a GPU and from ranks without one:
// rows, columns, several blocks of a tensor, with the snapshot on the device or pinned, one rank
// with a GPU beside one without, in frames and in layouts of whole tensors.
#include <gtest/gtest.h>

#include "gpu/device.h"
#include "plugin/device/device_factories.h"
#include "support/forwarding_send_road.h"
#include "support/loopback_job.h"
#include "support/published_run.h"

namespace driftless {
namespace {

using namespace driftless::testing;

std::shared_ptr<std::byte> on_gpu(std::span<const std::byte> bytes) {
  const auto held = std::make_shared<DeviceBytes>(bytes);
  return {held, held->data()};
}

std::shared_ptr<PublisherDevice> gpu_side(SnapshotPlace place) {
  DeviceOptions options;
  options.snapshot = place;
  options.slice_bytes = 1 << 20;  // tensors are cut
  auto side = make_publisher_device(options);
  must(side.status());
  return *side;
}

Weights with_large() {
  Weights weights = random_weights(5);
  std::mt19937_64 random(3);
  // Its blocks come in several slices.
  weights["model.large"] = random_tensor(DType::kBF16, {3000, 2000}, random);
  return weights;
}

struct Way {
  SnapshotPlace place;
  DirectoryLayout layout;
  Encoding encoding;
  unsigned ranks;   // the first has no GPU, if there are three
  unsigned pieces;  // blocks of a tensor that a rank has
  unsigned cuts = 0;
};

class GpuBlocks : public ::testing::TestWithParam<Way> {
 protected:
  GpuBlocks() {
    Trainer::offer_as([](const Weights& weights, unsigned rank) {
      MemorySource source = in_blocks(weights, rank, GetParam().ranks, GetParam().pieces);
      if (has_device(rank)) source.lie_on_device(on_gpu);
      return source;
    });
    options_.layout = GetParam().layout;
    options_.encoding = GetParam().encoding;
    options_.buffer_bytes = 64 << 10;
    options_.deadline = std::chrono::seconds(60);
    options_.anchor_every = 3;
    if (GetParam().cuts == 0) return;
    options_.cuts = {{"model.embed.weight", 1, GetParam().cuts},
                     {"model.layers.0.up.weight", 0, GetParam().cuts},
                     {"model.large", 0, GetParam().cuts},
                     {"model.norm.weight", 0, GetParam().cuts}};
  }
  ~GpuBlocks() override { Trainer::offer_as({}); }

  static bool has_device(unsigned rank) { return GetParam().ranks < 3 || rank > 0; }
  std::unique_ptr<Trainer> open() {
    std::vector<std::shared_ptr<PublisherDevice>> devices;
    for (unsigned rank = 0; rank < GetParam().ranks; ++rank) {
      devices.push_back(has_device(rank) ? gpu_side(GetParam().place) : nullptr);
    }
    auto trainer =
        std::make_unique<Trainer>(hub_, GetParam().ranks, options_, base_, std::move(devices));
    for (const Status& status : trainer->opened()) must(status);
    return trainer;
  }

  PublisherOptions options_ = quick_options();
  LoopbackHub hub_{{}, GetParam().ranks};
  const Weights base_ = with_large();
};

constexpr auto kFrames = DirectoryLayout::kFrames;
INSTANTIATE_TEST_SUITE_P(
    Ways, GpuBlocks,
    ::testing::Values(Way{SnapshotPlace::kPinned, kFrames, Encoding::kDeltas, 2, 1},
                      Way{SnapshotPlace::kDevice, kFrames, Encoding::kDeltas, 2, 1},
                      Way{SnapshotPlace::kDevice, kFrames, Encoding::kIndices, 1, 2},
                      Way{SnapshotPlace::kPinned, kFrames, Encoding::kDeltasZstd, 3, 2},
                      Way{SnapshotPlace::kDevice, kFrames, Encoding::kIndices, 3, 3},
                      Way{SnapshotPlace::kDevice, kFrames, Encoding::kDeltas, 1, 1, 4},
                      Way{SnapshotPlace::kPinned, kFrames, Encoding::kDeltasZstd, 2, 2, 3},
                      Way{SnapshotPlace::kDevice, kFrames, Encoding::kIndices, 3, 2, 5},
                      Way{SnapshotPlace::kPinned, DirectoryLayout::kHfDelta, Encoding::kXor, 2, 2},
                      Way{SnapshotPlace::kPinned, DirectoryLayout::kFlush, Encoding::kDeltas, 3,
                          1}));

// Steps, one that is aborted, a dense one, anchors, a restart: every version is the trainer's bits,
// and so are the digests of every tensor, or the receiver would refuse it.
TEST_P(GpuBlocks, AreTheTensors) {
  std::unique_ptr<Trainer> trainer = open();
  Rollout rollout(hub_, base_);
  Weights weights = base_;
  for (std::uint64_t version = 1; version <= 7; ++version) {
    Weights next = changed_weights(weights, version, 0.02, "none");
    if (version == 2) {
      next = weights;
      next.at("model.large").bytes[10'000] ^= std::byte{1};  // one rank's
    }
    if (version == 4) {
      trainer->road(GetParam().ranks - 1).arm(RoadFault::kFlush);
      for (const Status& status : trainer->publish(changed_weights(weights, 44, 0.02, "none"))) {
        ASSERT_FALSE(status.ok());
      }
    }
    if (version == 5) next = changed_weights(weights, 55, 0.9, "none");  // dense
    if (version == 6) {
      trainer.reset();
      trainer = open();
      ASSERT_TRUE(trainer->rank(0).resumed());
    }
    for (const Status& status : trainer->publish(next)) must(status);
    EXPECT_EQ(trainer->report().digest, digest_of(next)) << version;
    ASSERT_EQ(rollout.follow().to_string(), "ok") << version;
    ASSERT_TRUE(rollout.holds(next)) << version;
    weights = next;
  }
  Rollout late(hub_, std::nullopt);
  EXPECT_EQ(late.follow().to_string(), "ok");
  EXPECT_TRUE(late.holds(weights));
}

// Parts in device memory, as over NCCL: frames are assembled there. The bytes travel over loopback.
class DevicePart final : public ForwardingPart {
 public:
  using ForwardingPart::ForwardingPart;
  Status pwrite(std::uint64_t offset, std::span<const std::byte> bytes) override {
    std::vector<std::byte> host(bytes.size());
    must(cudaMemcpy(host.data(), bytes.data(), bytes.size(), cudaMemcpyDefault));
    return ForwardingPart::pwrite(offset, host);
  }
};

class DeviceParts final : public ForwardingSendRoad {
 public:
  using ForwardingSendRoad::ForwardingSendRoad;
  Result<std::unique_ptr<File>> create_part(const std::string& name) override {
    DRIFTLESS_ASSIGN_OR_RETURN(std::unique_ptr<File> file, road_->create_part(name));
    return std::unique_ptr<File>(std::make_unique<DevicePart>(std::move(file)));
  }
  [[nodiscard]] MemoryKind part_memory() const override { return MemoryKind::kDevice; }
};

TEST(GpuBlocksInFramesOnTheDevice, AreTheTensors) {
  const Weights base = with_large();
  LoopbackHub hub({}, 1);
  DeviceParts road(hub.sender(0));
  SoloGroup group;
  PublisherOptions options = quick_options();
  options.deadline = std::chrono::seconds(60);
  options.device = gpu_side(SnapshotPlace::kDevice);
  const auto source = [](const Weights& weights) {
    MemorySource blocks = in_blocks(weights, 0, 1, 3);
    blocks.lie_on_device(on_gpu);
    return blocks;
  };
  MemorySource first = source(base);
  const auto publisher = Publisher::open(options, group, road, nullptr, first);
  must(publisher.status());
  Rollout rollout(hub, base);
  Weights weights = base;
  for (std::uint64_t version = 1; version <= 4; ++version) {
    weights = changed_weights(weights, version, version == 3 ? 0.9 : 0.02, "none");
    MemorySource now = source(weights);
    const auto report = (*publisher)->publish(now);
    must(report.status());
    EXPECT_EQ(report->digest, digest_of(weights));
    ASSERT_EQ(rollout.follow().to_string(), "ok") << version;
    ASSERT_TRUE(rollout.holds(weights)) << version;
  }
}

}  // namespace
}  // namespace driftless
