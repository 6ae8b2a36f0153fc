// SPDX-License-Identifier: Apache-2.0
#include "core/block.h"

#include <gtest/gtest.h>

#include <set>

namespace driftless {
namespace {

TensorSpec tensor(std::vector<std::uint64_t> shape, DType dtype = DType::kBF16) {
  return TensorSpec::make("t", dtype, std::move(shape)).value();
}

// The units of a box one by one, in the order of the box.
std::vector<std::uint64_t> units_of(const std::vector<std::uint64_t>& shape, const TensorBox& box) {
  std::vector<std::uint64_t> found;
  std::vector<std::uint64_t> at(shape.size());
  while (true) {
    std::uint64_t unit = 0;
    for (std::size_t d = 0; d < shape.size(); ++d) {
      unit = unit * shape[d] + box.offsets[d] + at[d];
    }
    found.push_back(unit);
    std::size_t d = shape.size();
    while (d > 0 && ++at[d - 1] == box.sizes[d - 1]) at[--d] = 0;
    if (d == 0) return found;
  }
}

TEST(BlockPlace, IsWhereEveryUnitOfEveryBoxLies) {
  const std::vector<std::uint64_t> shape{3, 1, 4, 2};
  const TensorSpec spec = tensor(shape);
  std::size_t boxes = 0;
  for (std::uint64_t code = 0; code < 3 * 3 * 4 * 4 * 2 * 2; ++code) {
    std::uint64_t rest = code;
    const auto digit = [&](std::uint64_t base) {
      const std::uint64_t value = rest % base;
      rest /= base;
      return value;
    };
    TensorBox box{{digit(3), 0, digit(4), digit(2)}, {}};
    box.sizes = {digit(3) + 1, 1, digit(4) + 1, digit(2) + 1};
    bool inside = true;
    for (std::size_t d = 0; d < 4; ++d) inside &= box.offsets[d] + box.sizes[d] <= shape[d];
    const Result<BlockPlace> place = place_of(spec, box);
    ASSERT_EQ(place.ok(), inside) << box.to_string();
    if (!inside) continue;
    ++boxes;
    const std::vector<std::uint64_t> expected = units_of(shape, box);
    ASSERT_EQ(place->units, expected.size());
    for (std::uint64_t unit = 0; unit < expected.size(); ++unit) {
      ASSERT_EQ(place->at(unit), expected[unit]) << box.to_string() << " " << unit;
    }
    const bool adjoin = expected.back() - expected.front() + 1 == expected.size();
    EXPECT_EQ(place->contiguous(), adjoin) << box.to_string();
  }
  EXPECT_EQ(boxes, 6U * 10 * 3);
}

TEST(BlockPlace, OfPackedElementsCountsBytes) {
  const TensorSpec spec = tensor({4, 8}, DType::kF4);
  const Result<BlockPlace> place = place_of(spec, {{1, 2}, {2, 4}});
  ASSERT_TRUE(place.ok());
  EXPECT_EQ(place->units, 4U);
  EXPECT_EQ(place->at(0), 5U);
  EXPECT_EQ(place->at(3), 10U);
  EXPECT_EQ(place_of(spec, {{0, 1}, {2, 4}}).status().code(), StatusCode::kCorrupt);
  EXPECT_EQ(place_of(spec, {{0, 0}, {2, 3}}).status().code(), StatusCode::kCorrupt);
}

TEST(BlockPlace, RefusesWhatIsNoBox) {
  const TensorSpec spec = tensor({4, 8});
  for (const TensorBox& box :
       {TensorBox{{0}, {4}}, TensorBox{{0, 0}, {4}}, TensorBox{{0, 0}, {0, 8}},
        TensorBox{{~0ULL, 0}, {2, 8}}, TensorBox{{0, 4}, {4, ~0ULL}}}) {
    EXPECT_EQ(place_of(spec, box).status().code(), StatusCode::kCorrupt);
  }
  EXPECT_FALSE(TensorBlock::make(0, spec, {}).ok());
  EXPECT_FALSE(TensorBlock::make(0, spec, {{0, 0}, {4, 8}}).ok());
  EXPECT_TRUE(TensorBlock::make(0, spec, {{0, 0}, {4, 7}}).ok());
}

TEST(Boxes, CoverATensorOrTheFirstGapOrOverlapIsNamed) {
  const TensorSpec spec = tensor({4, 8});
  const std::vector<TensorBox> good{{{0, 0}, {4, 3}}, {{0, 3}, {2, 5}}, {{2, 3}, {2, 5}}};
  EXPECT_TRUE(check_covers(spec, good).ok());
  EXPECT_TRUE(check_covers(spec, std::vector<TensorBox>{{}}).ok());
  const Status gap = check_covers(spec, std::span(good).first(2));
  EXPECT_EQ(gap.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(gap.message().find("'t' at [2, 3] is in none"), std::string::npos) << gap.message();
  std::vector<TensorBox> twice = good;
  twice[1] = {{0, 2}, {2, 6}};
  const Status meet = check_covers(spec, twice);
  EXPECT_EQ(meet.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(meet.message().find("'t' at [0, 2] is in two blocks, [0:4, 0:3] and [0:2, 2:8]"),
            std::string::npos)
      << meet.message();
}

}  // namespace
}  // namespace driftless
