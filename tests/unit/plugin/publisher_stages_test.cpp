// SPDX-License-Identifier: Apache-2.0
// Each stage of a publication has a time of its own: a slow source does not count for the road, and
// waiting for a slow road does not count for the comparison.
#include <gtest/gtest.h>

#include <thread>

#include "core/stopwatch.h"
#include "plugin/publish/publisher.h"
#include "support/forwarding_send_road.h"
#include "support/loopback_road.h"
#include "support/weight_source.h"
#include "support/weights.h"

namespace driftless {
namespace {

using namespace std::chrono_literals;
using testing::MemorySource;
using testing::Weights;

constexpr std::size_t kStageTensors = 8;
constexpr auto kPause = 60ms;  // long beside what the stages take on a busy machine
constexpr double kAllMs = 8 * 60;

class SlowPart final : public testing::ForwardingPart {
 public:
  using ForwardingPart::ForwardingPart;
  Status sync() override {
    std::this_thread::sleep_for(kPause);
    return ForwardingPart::sync();
  }
};

class SlowRoad final : public testing::ForwardingSendRoad {
 public:
  SlowRoad(std::unique_ptr<SendRoad> road, bool slow)
      : ForwardingSendRoad(std::move(road)), slow_(slow) {}
  Result<std::unique_ptr<File>> create_part(const std::string& name) override {
    DRIFTLESS_ASSIGN_OR_RETURN(std::unique_ptr<File> file, road_->create_part(name));
    if (!slow_) return file;
    return std::unique_ptr<File>(std::make_unique<SlowPart>(std::move(file)));
  }
  Result<std::vector<PartReceipt>> flush(const Deadline& deadline) override {
    if (slow_) std::this_thread::sleep_for(kPause);
    return ForwardingSendRoad::flush(deadline);
  }
  Status seal(std::string_view manifest, const Deadline& deadline) override {
    std::this_thread::sleep_for(kPause);
    return ForwardingSendRoad::seal(manifest, deadline);
  }

 private:
  bool slow_;
};

class SlowSource final : public WeightSource {
 public:
  SlowSource(const Weights& weights, bool slow) : source_(weights, 1), slow_(slow) {}
  [[nodiscard]] std::span<const TensorSpec> tensors() const override { return source_.tensors(); }
  [[nodiscard]] Status visit(
      const std::function<Status(std::span<const OfferedTensor>)>& use) override {
    return source_.visit([&](std::span<const OfferedTensor> batch) {
      if (slow_) std::this_thread::sleep_for(kPause);
      return use(batch);
    });
  }

 private:
  MemorySource source_;
  bool slow_;
};

Weights equal_tensors() {
  std::mt19937_64 random(1);
  Weights weights;
  for (std::size_t i = 0; i < kStageTensors; ++i) {
    weights[concat("layer.", i)] = testing::random_tensor(DType::kBF16, {64, 64}, random);
  }
  return weights;
}

PublishReport publish_in_stages(Encoding encoding, bool background, bool slow_source,
                                bool slow_road) {
  LoopbackHub hub({}, 1);
  SlowRoad road(hub.sender(0), slow_road);
  SoloGroup group;
  PublisherOptions options;
  options.encoding = encoding;
  options.threads = 2;
  options.background = background;
  options.buffer_bytes = 256;  // every tensor is a part
  const Weights base = equal_tensors();
  MemorySource offered(base);
  auto publisher = Publisher::open(options, group, road, nullptr, offered);
  EXPECT_TRUE(publisher.ok()) << publisher.status().to_string();
  SlowSource source(testing::changed_weights(base, 2, 0.1), slow_source);
  auto report = (*publisher)->publish(source);
  EXPECT_TRUE(report.ok()) << report.status().to_string();
  return report.ok() ? *report : PublishReport();
}

using StagesCase = std::tuple<Encoding, bool>;
class PublisherStages : public ::testing::TestWithParam<StagesCase> {};
INSTANTIATE_TEST_SUITE_P(Encodings, PublisherStages,
                         ::testing::Combine(::testing::Values(Encoding::kDeltas,
                                                              Encoding::kDeltasZstd,
                                                              Encoding::kCompact),
                                            ::testing::Bool()));

TEST_P(PublisherStages, ASlowSourceIsTimeOfTheComparison) {
  const auto [encoding, background] = GetParam();
  const PublishReport report = publish_in_stages(encoding, background, true, false);
  EXPECT_GE(report.stages.compare_ms, kAllMs);
  EXPECT_LE(report.stages.compare_ms, report.process_ms);
  EXPECT_LT(report.stages.encode_ms, kAllMs * 0.9);
  EXPECT_LT(report.stages.send_ms, kAllMs * 0.9);
  EXPECT_GE(report.seal_ms, 60);
  EXPECT_LE(report.seal_ms, report.manifest_publish_ms);
}

TEST_P(PublisherStages, ASlowRoadIsTimeOfSending) {
  const auto [encoding, background] = GetParam();
  const PublishReport report = publish_in_stages(encoding, background, false, true);
  EXPECT_GE(report.stages.send_ms, kAllMs + 60);  // parts and flush
  EXPECT_LE(report.stages.send_ms, report.process_ms);
  EXPECT_LT(report.stages.compare_ms, kAllMs * 0.9);
  EXPECT_LT(report.stages.encode_ms, kAllMs * 0.9);
  EXPECT_GT(report.stages.compare_ms, 0);
  EXPECT_GT(report.stages.encode_ms, 0);
}

}  // namespace
}  // namespace driftless
