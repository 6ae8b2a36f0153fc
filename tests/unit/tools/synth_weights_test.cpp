// SPDX-License-Identifier: Apache-2.0
#include "tools/synth_weights.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

namespace driftless {
namespace {

constexpr std::size_t kCount = 100'000;

std::vector<float> initial(const SynthTensor& tensor, std::uint64_t first, std::size_t count) {
  std::vector<float> masters(count);
  SynthWeights::initialize(tensor, first, masters);
  return masters;
}

float median_magnitude(std::vector<float> values) {
  for (float& value : values) value = std::abs(value);
  std::nth_element(values.begin(), values.begin() + kCount / 2, values.end());
  return values[kCount / 2];
}

TEST(SynthWeights, MatricesHaveTheMagnitudesOfRealModels) {
  const SynthWeights weights(1, 1e-6);
  const SynthTensor tensor = weights.tensor("a", SynthKind::kMatrix, 1000);
  const std::vector<float> values = initial(tensor, 0, kCount);
  EXPECT_NEAR(median_magnitude(values), 0.02, 0.006);
  double sum = 0;
  for (const float value : values) sum += value;
  EXPECT_LT(std::abs(sum / kCount), 0.0005);
}

TEST(SynthWeights, NormsAreNearOne) {
  const SynthWeights weights(1, 1e-6);
  for (const float value : initial(weights.tensor("n", SynthKind::kNorm, 1000), 0, 1000)) {
    EXPECT_NEAR(value, 1.0, 0.21);
  }
}

TEST(SynthWeights, AnyCutGivesTheSameNumbers) {
  const SynthWeights weights(1, 1e-6);
  for (const SynthKind kind : {SynthKind::kMatrix, SynthKind::kEmbedding, SynthKind::kNorm}) {
    const SynthTensor tensor = weights.tensor("a", kind, 60);
    std::vector<float> whole = initial(tensor, 0, 1001);
    weights.step(tensor, 1, 0, whole);
    std::vector<float> pieces;
    for (std::size_t first = 0; first < 1001; first += 44) {
      std::vector<float> piece = initial(tensor, first, std::min<std::size_t>(44, 1001 - first));
      weights.step(tensor, 1, first, piece);
      pieces.insert(pieces.end(), piece.begin(), piece.end());
    }
    EXPECT_EQ(whole, pieces);
  }
}

TEST(SynthWeights, SeedsNamesAndStepsDiffer) {
  const SynthWeights weights(1, 1e-3);
  const SynthWeights other_seed(2, 1e-3);
  const SynthTensor tensor = weights.tensor("a", SynthKind::kMatrix, 1000);
  const std::vector<float> values = initial(tensor, 0, 1000);
  EXPECT_NE(values, initial(other_seed.tensor("a", SynthKind::kMatrix, 1000), 0, 1000));
  EXPECT_NE(values, initial(weights.tensor("b", SynthKind::kMatrix, 1000), 0, 1000));
  std::vector<float> first = values;
  std::vector<float> second = values;
  weights.step(tensor, 1, 0, first);
  weights.step(tensor, 2, 0, second);
  EXPECT_NE(first, second);
}

TEST(SynthWeights, StepsAreHeavyTailedAndScaleWithTheLearningRate) {
  const SynthWeights weights(1, 1e-3);
  const SynthTensor tensor = weights.tensor("a", SynthKind::kMatrix, 1000);
  std::vector<float> steps(kCount, 0.0F);
  weights.step(tensor, 1, 0, steps);
  const float median = median_magnitude(steps);
  float largest = 0;
  for (const float step : steps) largest = std::max(largest, std::abs(step));
  EXPECT_GT(median, 1e-4F);
  EXPECT_LT(median, 1e-3F);
  EXPECT_GT(largest, 10 * median);
  EXPECT_LE(largest, 1e-2F);
}

TEST(SynthWeights, AStepTouchesWholeRowsOfAnEmbeddingAndOnlySome) {
  const SynthWeights weights(1, 1e-3);
  constexpr std::size_t kRow = 16;
  const SynthTensor tensor = weights.tensor("e", SynthKind::kEmbedding, kRow);
  std::vector<float> steps(1000 * kRow, 0.0F);
  weights.step(tensor, 1, 0, steps);
  int touched = 0;
  for (std::size_t row = 0; row < 1000; ++row) {
    const auto begin = steps.begin() + static_cast<std::ptrdiff_t>(row * kRow);
    const auto moved = std::count_if(begin, begin + kRow, [](float x) { return x != 0; });
    EXPECT_TRUE(moved == 0 || moved == kRow) << row;
    touched += moved > 0 ? 1 : 0;
  }
  EXPECT_NEAR(touched, 300, 60);
}

TEST(Bf16, RoundsToNearestAndTiesToEven) {
  const auto rounded = [](std::uint32_t bits) {
    const float value = std::bit_cast<float>(bits);
    std::uint16_t out = 0;
    round_to_bf16({&value, 1}, {&out, 1});
    return out;
  };
  EXPECT_EQ(rounded(0x3f800000), 0x3f80);
  EXPECT_EQ(rounded(0x3f807fff), 0x3f80);
  EXPECT_EQ(rounded(0x3f808000), 0x3f80);  // a tie: to even, down
  EXPECT_EQ(rounded(0x3f808001), 0x3f81);
  EXPECT_EQ(rounded(0x3f818000), 0x3f82);  // a tie: to even, up
  EXPECT_EQ(rounded(0xbf818000), 0xbf82);
  EXPECT_EQ(rounded(0x3fffffff), 0x4000);  // into the next binade
  EXPECT_EQ(rounded(0x80000000), 0x8000);
}

TEST(Bf16, CountsDifferentElements) {
  const std::vector<std::uint16_t> a{1, 2, 3, 4};
  const std::vector<std::uint16_t> b{1, 0, 3, 5};
  EXPECT_EQ(count_different(a, b), 2U);
  EXPECT_EQ(count_different(a, a), 0U);
}

}  // namespace
}  // namespace driftless
