// SPDX-License-Identifier: Apache-2.0
#include "tools/compare/encoding_costs.h"

#include <gtest/gtest.h>

#include "tools/compare/metrics_lines.h"
#include "tools/compare/tensor_groups.h"

namespace driftless {
namespace {

EncodingCost cost(Encoding encoding, std::uint64_t bytes, double encode_ms) {
  return {encoding, DirectoryLayout::kFlush, bytes, encode_ms, {}};
}

TEST(EncodingCosts, TheFastestWeighsEncodingAgainstTheLink) {
  std::vector<EncodingCost> costs{cost(Encoding::kDeltas, 4'000'000, 1),
                                  cost(Encoding::kCompact, 1'000'000, 50)};
  EXPECT_EQ(fastest_on(costs, kLinks[0])->encoding, Encoding::kCompact);  // 0.13 s, 0.32 s
  EXPECT_EQ(fastest_on(costs, kLinks[3])->encoding, Encoding::kDeltas);
  costs[1].why_not = "old values are not known";
  EXPECT_EQ(fastest_on(costs, kLinks[0])->encoding, Encoding::kDeltas);
  EXPECT_EQ(fastest_on({}, kLinks[0]), nullptr);
  EXPECT_DOUBLE_EQ(link_seconds(12'500'000, kLinks[0]), 1.0);
}

TEST(EncodingCosts, WithoutOldValuesOnlyPositionsAreMeasured) {
  const auto spec = TensorSpec::make("t", DType::kBF16, {100});
  const auto layout = WeightLayout::make({*spec});
  CostOptions options;
  options.no_old_values = "the base is not there";
  EncodingCosts costs(*layout, options);
  const std::uint32_t offsets[] = {3, 70};
  const std::byte values[4] = {};
  const TensorPair pair{0, 2, 100};
  ASSERT_TRUE(costs.add({&pair, 0, 100, {0, 2, 0, offsets, values}, nullptr}).ok());
  const auto found = costs.finish();
  ASSERT_TRUE(found.ok());
  for (const EncodingCost& each : *found) {
    EXPECT_EQ(each.measured(), info(each.encoding).positional) << info(each.encoding).name;
    EXPECT_EQ(each.bytes > 0, each.measured());
  }
}

TEST(EncodingCosts, NoChangesTakeNoBytes) {
  const auto layout = WeightLayout::make({});
  EncodingCosts costs(*layout, {});
  ASSERT_TRUE(costs.begin_whole({}).ok());
  const auto found = costs.finish();
  ASSERT_TRUE(found.ok());
  for (const EncodingCost& each : *found) EXPECT_EQ(each.bytes, 0U);
}

TEST(TensorGroups, PlaceOfATensor) {
  const auto place = [](std::string_view name) {
    const TensorPlace found = place_of_tensor(name);
    return found.layer + " | " + found.kind;
  };
  EXPECT_EQ(place("model.layers.12.mlp.experts.3.up_proj.weight"),
            "model.layers.12 | mlp.experts.up_proj");
  EXPECT_EQ(place("model.layers.1.self_attn.q_proj.bias"),
            "model.layers.1 | self_attn.q_proj.bias");
  EXPECT_EQ(place("lm_head.weight"), "(no layer) | lm_head");
  EXPECT_EQ(place("weight"), "(no layer) | weight");
  EXPECT_EQ(place("7"), "7 | 7");
  EXPECT_EQ(place("a..b.weight"), "(no layer) | a..b");
}

TEST(TensorGroups, NumbersAscend) {
  EXPECT_TRUE(natural_less("layers.9", "layers.10"));
  EXPECT_FALSE(natural_less("layers.10", "layers.9"));
  EXPECT_FALSE(natural_less("a.1", "a.1"));
  EXPECT_TRUE(natural_less("a", "a.1"));
  EXPECT_TRUE(natural_less("a.2.b", "b.1"));
}

TEST(Metrics, MedianOfNoneIsZero) {
  EXPECT_EQ(median_of({}), 0);
  EXPECT_EQ(median_of({3, 1, 2}), 2);
}

}  // namespace
}  // namespace driftless
