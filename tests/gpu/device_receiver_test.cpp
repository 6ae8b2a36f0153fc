// SPDX-License-Identifier: Apache-2.0
// A real publisher on the host, and two receivers on its road: one keeps its weights on the GPU,
// the other in memory. They must agree bit for bit, all the way.
#include <gtest/gtest.h>

#include "gpu/arrival.h"
#include "plugin/device/device_factories.h"
#include "plugin/publish/publisher.h"
#include "plugin/receive/receiver.h"
#include "plugin/targets/mapped_target.h"
#include "support/loopback_road.h"
#include "support/published_run.h"
#include "support/weight_source.h"

namespace driftless::testing {
namespace {

using namespace std::chrono_literals;

struct Setting {
  Encoding encoding;
  Arrival arrival;
};

// Every dtype that there is, and several sizes of bf16.
Weights weights_of_all_dtypes(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  Weights weights = random_weights(seed, 300);
  for (const DTypeInfo& dtype : all_dtypes()) {
    weights[concat("dtype.", dtype.name)] = random_tensor(dtype.dtype, {64, 50}, random);
  }
  return weights;
}

struct ReceiverAndTarget {
  ReceiverAndTarget(LoopbackHub& hub, Arrival arrival, std::string id,
                    std::unique_ptr<WeightTarget> kept)
      : road(hub.receiver(), arrival), target(std::move(kept)) {
    ReceiverOptions options;
    options.id = std::move(id);
    auto opened = Receiver::open(options, road, *target, Deadline::after(5s));
    EXPECT_TRUE(opened.ok()) << opened.status().to_string();
    if (opened.ok()) receiver = std::move(*opened);
  }
  // To the newest version there is.
  Status follow() {
    while (true) {
      DRIFTLESS_ASSIGN_OR_RETURN(const bool staged, receiver->stage(Deadline::after(20ms)));
      if (!staged) return {};
      DRIFTLESS_ASSIGN_OR_RETURN(last, receiver->commit());
    }
  }

  ArrivalRoad road;
  std::unique_ptr<WeightTarget> target;
  std::unique_ptr<Receiver> receiver;
  UpdateReport last;
};

class DeviceReceiver : public ::testing::TestWithParam<Setting> {
 protected:
  void open(std::optional<VersionId> initial, const PublisherOptions& options) {
    MemorySource source(base_);
    auto opened = Publisher::open(options, *group_, *sender_, nullptr, source);
    ASSERT_TRUE(opened.ok()) << opened.status().to_string();
    publisher_ = std::move(*opened);
    if (!initial) held_ = changed_weights(base_, 5, 0.5, "none");
    model_ = std::make_unique<DeviceModel>(held_);
    auto memory = make_memory_target(layout_, pointers(held_), initial, 1);
    auto gpu = make_device_memory(0);
    ASSERT_TRUE(gpu.ok()) << gpu.status().to_string();
    auto device = make_memory_target(layout_, model_->pointers(), initial, 1, *gpu);
    ASSERT_TRUE(memory.ok() && device.ok()) << device.status().to_string();
    host_ = std::make_unique<ReceiverAndTarget>(hub_, Arrival::kHost, "host", std::move(*memory));
    device_ =
        std::make_unique<ReceiverAndTarget>(hub_, GetParam().arrival, "gpu", std::move(*device));
  }
  PublisherOptions options() const {
    PublisherOptions options;
    options.encoding = GetParam().encoding;
    options.threads = 1;
    options.buffer_bytes = 4096;
    options.full_above_density = 2;
    options.deadline = 20s;
    return options;
  }
  void publish(double share) {
    current_ = changed_weights(current_, ++seed_, share, "none");
    MemorySource source(current_);
    const auto report = publisher_->publish(source);
    ASSERT_TRUE(report.ok()) << report.status().to_string();
  }
  void expect_same(const Weights& weights) const {
    EXPECT_TRUE(same(held_, weights));
    EXPECT_TRUE(model_->holds(weights));
    EXPECT_EQ(device_->target->state(), host_->target->state());
  }
  void follow() {
    for (ReceiverAndTarget* each : {host_.get(), device_.get()}) {
      const Status status = each->follow();
      ASSERT_TRUE(status.ok()) << status.to_string();
    }
    expect_same(current_);
  }

  const Weights base_ = weights_of_all_dtypes(3);
  const WeightLayout layout_ = layout_of(base_);
  Weights current_ = base_, held_ = base_;
  std::uint64_t seed_ = 100;
  LoopbackHub hub_{{}, 1};
  std::unique_ptr<Group> group_ = hub_.group(0);
  std::unique_ptr<SendRoad> sender_ = hub_.sender(0);
  std::unique_ptr<Publisher> publisher_;
  std::unique_ptr<DeviceModel> model_;
  std::unique_ptr<ReceiverAndTarget> host_, device_;
};

TEST_P(DeviceReceiver, FollowsManyVersions) {
  open(VersionId{}, options());
  for (const double share : {0.01, 0.3, 0.0, 0.001, 0.05, 1.0}) {
    publish(share);
    follow();
  }
  for (int i = 0; i < 5; ++i) publish(0.02);
  follow();
  EXPECT_EQ(device_->last.versions, 5U) << "folded";
  for (int i = 0; i < 10; ++i) {
    publish(0.01);
    follow();
  }
}

TEST_P(DeviceReceiver, RollsBack) {
  open(VersionId{}, options());
  publish(0.02);
  follow();
  const Weights before = current_;
  publish(0.02);
  publish(0.02);
  follow();
  for (ReceiverAndTarget* each : {host_.get(), device_.get()}) {
    const Status status = each->receiver->rollback();
    ASSERT_TRUE(status.ok()) << status.to_string();
  }
  expect_same(before);
  follow();
}

TEST_P(DeviceReceiver, StartsFromAnAnchorAndTakesFullVersions) {
  PublisherOptions wanted = options();
  wanted.first_anchor = true;
  wanted.full_above_density = 0.2;
  open(std::nullopt, wanted);
  publish(0.01);
  follow();
  publish(0.9);  // sent in full
  follow();
  publish(0.01);
  follow();
  ASSERT_TRUE(publisher_->publish_anchor().ok());
  publish(0.01);
  follow();
}

INSTANTIATE_TEST_SUITE_P(Settings, DeviceReceiver,
                         ::testing::Values(Setting{Encoding::kIndices, Arrival::kHost},
                                           Setting{Encoding::kIndices, Arrival::kDevice},
                                           Setting{Encoding::kDeltas, Arrival::kHost},
                                           Setting{Encoding::kDeltas, Arrival::kDevice},
                                           Setting{Encoding::kDeltasZstd, Arrival::kHost},
                                           Setting{Encoding::kDeltasZstd, Arrival::kDevice},
                                           Setting{Encoding::kCompact, Arrival::kHost},
                                           Setting{Encoding::kCompact, Arrival::kDevice}));

}  // namespace
}  // namespace driftless::testing
