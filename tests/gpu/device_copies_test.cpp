// SPDX-License-Identifier: Apache-2.0
// What two ranks with a GPU hold under one name is compared, wherever the snapshot lies.
#include <gtest/gtest.h>

#include "gpu/device.h"
#include "plugin/device/device_factories.h"
#include "support/loopback_job.h"
#include "support/published_run.h"

namespace driftless {
namespace {

using namespace driftless::testing;

constexpr const char* kEmbed = "model.embed.weight";
constexpr const char* kNorm = "model.norm.weight";

// Both ranks have the norm; each has half of the matrix, and both its last rows.
class GpuCopies : public ::testing::TestWithParam<SnapshotPlace> {
 protected:
  GpuCopies() {
    Trainer::offer_as([this](const Weights& weights, unsigned rank) {
      Weights held = weights;
      if (rank == 1 && differ_) held.at(kNorm).bytes[100] ^= std::byte{1};
      const std::uint64_t rows = held.at(kEmbed).shape[0], columns = held.at(kEmbed).shape[1];
      const std::uint64_t half = columns / 2, shared = rows - 16;
      MemorySource source({}, 2);
      source.add(kNorm, held.at(kNorm));
      source.add(kEmbed, held.at(kEmbed), {{0, rank * half}, {shared, half}});
      source.add("on the host", held.at("on the host"));
      source.add(kEmbed, held.at(kEmbed), {{shared, 0}, {16, columns}});
      source.lie_on_device([](std::span<const std::byte> bytes) {
        const auto placed = std::make_shared<DeviceBytes>(bytes);
        return std::shared_ptr<std::byte>(placed, placed->data());
      });
      return source;
    });
  }
  ~GpuCopies() override { Trainer::offer_as({}); }

  bool differ_ = false;
  LoopbackHub hub_{{}, 2};
};

INSTANTIATE_TEST_SUITE_P(Places, GpuCopies,
                         ::testing::Values(SnapshotPlace::kPinned, SnapshotPlace::kDevice));

TEST_P(GpuCopies, StayTheSameOrNothingIsPublished) {
  const Weights some = random_weights(1);
  const Weights base{
      {kEmbed, some.at(kEmbed)}, {kNorm, some.at(kNorm)}, {"on the host", some.at(kNorm)}};
  DeviceOptions device;
  device.snapshot = GetParam();
  std::vector<std::shared_ptr<PublisherDevice>> devices;
  for (unsigned rank = 0; rank < 2; ++rank) {
    auto made = make_publisher_device(device);
    ASSERT_TRUE(made.ok()) << made.status().to_string();
    devices.push_back(*made);
  }
  Trainer trainer(hub_, 2, quick_options(), base, devices);
  for (const Status& status : trainer.opened()) must(status);
  Rollout rollout(hub_, base);
  const Weights first = changed_weights(base, 2, 0.02, "none");
  for (const Status& status : trainer.publish(first)) must(status);
  ASSERT_EQ(rollout.follow().to_string(), "ok");
  EXPECT_TRUE(rollout.holds(first));

  differ_ = true;
  for (const Status& status : trainer.publish(first)) {
    EXPECT_EQ(status.code(), StatusCode::kMismatch) << status.to_string();
  }
  differ_ = false;
  for (const Status& status : trainer.publish(changed_weights(first, 3, 0.02, "none")))
    must(status);
}

}  // namespace
}  // namespace driftless
