// SPDX-License-Identifier: Apache-2.0
// Sources that a publisher refuses.
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "plugin/publish/publisher.h"
#include "support/loopback_road.h"
#include "support/weight_source.h"
#include "support/weights.h"

namespace driftless {
namespace {

using testing::changed_weights;
using testing::MemorySource;
using testing::random_weights;
using testing::Weights;

// Leaves out the last tensor of the first batch, or offers its first one twice.
class OddSource final : public WeightSource {
 public:
  OddSource(MemorySource& source, bool twice) : source_(source), twice_(twice) {}
  [[nodiscard]] std::span<const TensorSpec> tensors() const override { return source_.tensors(); }
  [[nodiscard]] Status visit(
      const std::function<Status(std::span<const OfferedTensor>)>& use) override {
    bool first = true;
    return source_.visit([&](std::span<const OfferedTensor> batch) {
      std::vector<OfferedTensor> offered(batch.begin(), batch.end());
      if (first && twice_) offered.push_back(offered.front());
      if (first && !twice_) offered.pop_back();
      first = false;
      return use(offered);
    });
  }

 private:
  MemorySource& source_;
  bool twice_;
};

TEST(Publisher, SourcesThatForgetOrRepeatATensorAreRefused) {
  LoopbackHub hub({}, 1);
  const std::unique_ptr<SendRoad> road = hub.sender(0);
  SoloGroup group;
  const Weights base = random_weights(1);
  MemorySource source(base);
  const auto publisher = Publisher::open({}, group, *road, nullptr, source);
  ASSERT_TRUE(publisher.ok()) << publisher.status().to_string();
  const Weights next = changed_weights(base, 2, 0.01);
  MemorySource whole(next);
  for (const bool twice : {false, true}) {
    OddSource odd(whole, twice);
    const auto refused = (*publisher)->publish(odd);
    EXPECT_EQ(refused.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(refused.status().message().find(twice ? "twice" : "ended without"), std::string::npos)
        << refused.status().to_string();
  }
  EXPECT_TRUE((*publisher)->publish(whole).ok());
  MemorySource again(base);
  OddSource odd(again, false);
  LoopbackHub other({}, 1);
  const std::unique_ptr<SendRoad> empty = other.sender(0);
  EXPECT_FALSE(Publisher::open({}, group, *empty, nullptr, odd).ok());
}

}  // namespace
}  // namespace driftless
