// SPDX-License-Identifier: Apache-2.0
// scatter_strided and gather_strided give the same results as reference/ on every implementation:
// slices of rows and columns, transposes, stacks, steps, and conversions. Also the map itself:
// which views it refuses, and that it places every unit where a copy between the two views does.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>
#include <vector>

#include "kernels/host_kernels.h"
#include "support/kernels_data.h"
#include "support/kernels_under_test.h"

namespace driftless {
namespace {

using namespace driftless::testing;

// Views of tensors with two and three dimensions, as loaders make them.
std::vector<StridedCase> cases() {
  return {
      {"whole", 12 * 50, 12 * 50, {0, {12, 50}, {50, 1}}, {0, {12, 50}, {50, 1}}},
      {"rows", 12 * 50, 40 * 50, {150, {6, 50}, {50, 1}}, {1000, {6, 50}, {50, 1}}},
      {"columns", 12 * 50, 12 * 25, {25, {12, 25}, {50, 1}}, {0, {12, 25}, {25, 1}}},
      {"columns of columns", 12 * 50, 12 * 99, {25, {12, 20}, {50, 1}}, {3, {12, 20}, {99, 1}}},
      {"transposed", 12 * 50, 12 * 50, {0, {50, 12}, {1, 50}}, {0, {50, 12}, {12, 1}}},
      {"transposed slice", 12 * 50, 7 * 50, {50, {50, 7}, {1, 50}}, {0, {50, 7}, {7, 1}}},
      {"expert in a stack", 30 * 20, 4 * 600, {0, {30, 20}, {20, 1}}, {1200, {30, 20}, {1, 30}}},
      {"stack of slices",
       4 * 30 * 20,
       4 * 200,
       {5, {4, 20, 10}, {600, 20, 1}},
       {0, {4, 20, 10}, {200, 10, 1}}},
      {"heads interleaved",
       6 * 8 * 5,
       6 * 8 * 5,
       {0, {2, 3, 8, 5}, {120, 40, 5, 1}},
       {0, {2, 3, 8, 5}, {40, 80, 5, 1}}},
      {"every third", 100, 34, {0, {34}, {3}}, {0, {34}, {1}}},
      {"one", 100, 10, {42, {}, {}}, {7, {}, {}}},
      {"nothing", 100, 10, {0, {0, 10}, {10, 1}}, {0, {0, 10}, {10, 1}}},
  };
}

// For every index of the views: (source unit, target unit).
std::vector<std::pair<std::uint64_t, std::uint64_t>> pairs_of(const StridedCase& each) {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> pairs{
      {each.source.offset, each.target.offset}};
  for (std::size_t d = 0; d < each.source.shape.size(); ++d) {
    std::vector<std::pair<std::uint64_t, std::uint64_t>> wider;
    for (const auto& [source, target] : pairs) {
      for (std::uint64_t i = 0; i < each.source.shape[d]; ++i) {
        wider.emplace_back(source + i * each.source.strides[d],
                           target + i * each.target.strides[d]);
      }
    }
    pairs = std::move(wider);
  }
  return pairs;
}

TEST(StridedMap, MapsEveryUnitAsACopyBetweenTheViews) {
  for (const StridedCase& each : cases()) {
    SCOPED_TRACE(each.name);
    const StridedMap map = map_of(each);
    std::vector<std::uint64_t> expected(each.source_units, StridedMap::kOutside);
    const auto pairs = pairs_of(each);
    for (const auto& [source, target] : pairs) expected[source] = target;
    EXPECT_EQ(map.units(), pairs.size());
    StridedMap::Run run;
    for (std::uint64_t at = 0; at < each.source_units; ++at) {
      ASSERT_EQ(map.target_of(at), expected[at]) << at;
      if (at >= run.end) run = map.run_at(at);
      const bool outside = run.target == StridedMap::kOutside;
      ASSERT_EQ(outside ? run.target : run.target + (at - run.begin) * run.step, expected[at]);
    }
  }
}

TEST(StridedMap, JoinsDimensionsSoThatMostMapsNeedNoDivision) {
  const std::vector<StridedCase> all = cases();
  EXPECT_EQ(map_of(all[0]).dims, 1U);
  EXPECT_EQ(map_of(all[1]).dims, 1U);
  EXPECT_TRUE(map_of(all[1]).plain());
  EXPECT_EQ(map_of(all[2]).dims, 2U);
  EXPECT_EQ(map_of(all[7]).dims, 3U);
}

TEST(StridedMap, OfAWholeTensorIsTheIdentity) {
  for (const std::uint64_t units : {0U, 1U, 2U, 600U}) {
    const StridedView all{0, {units}, {1}};
    const StridedMap made = *StridedMap::make(all, units, all, units);
    const StridedMap whole = StridedMap::whole(units);
    EXPECT_EQ(whole.units(), units);
    EXPECT_EQ(whole.dims, made.dims);
    EXPECT_TRUE(whole.plain());
    for (std::uint64_t unit = 0; unit < units + 1; ++unit) {
      EXPECT_EQ(whole.target_of(unit), made.target_of(unit)) << unit << " of " << units;
    }
  }
}

TEST(StridedMap, RefusesViewsThatAreNoMap) {
  const StridedView plain{0, {4, 5}, {5, 1}};
  const auto refused = [&](const StridedView& source, const StridedView& target) {
    return !StridedMap::make(source, 20, target, 20).ok();
  };
  EXPECT_FALSE(refused(plain, plain));
  EXPECT_TRUE(refused({0, {5, 4}, {4, 1}}, plain)) << "other sizes";
  EXPECT_TRUE(refused({1, {4, 5}, {5, 1}}, plain)) << "past the end of the source";
  EXPECT_TRUE(refused(plain, {1, {4, 5}, {5, 1}})) << "past the end of the target";
  EXPECT_TRUE(refused({0, {4, 5}, {0, 1}}, plain)) << "expanded";
  EXPECT_TRUE(refused(plain, {0, {4, 5}, {4, 1}})) << "rows that overlap";
  const std::uint64_t huge = std::uint64_t{1} << 61;
  EXPECT_TRUE(refused({0, {4, 5}, {huge, 1}}, plain)) << "overflow";
  EXPECT_TRUE(refused(plain, {std::numeric_limits<std::uint64_t>::max(), {4, 5}, {5, 1}}));
}

TEST(StridedMap, KnowsWhetherMapsCoverATensorAndWhetherTheyMeet) {
  const auto make = [](const StridedView& source, const StridedView& target) {
    return *StridedMap::make(source, 100, target, 100);
  };
  const StridedMap left = make({0, {10, 4}, {10, 1}}, {0, {10, 4}, {10, 1}});
  const StridedMap right = make({4, {10, 6}, {10, 1}}, {4, {10, 6}, {10, 1}});
  const StridedMap wide = make({3, {10, 6}, {10, 1}}, {3, {10, 6}, {10, 1}});
  const StridedMap top = make({0, {3, 10}, {10, 1}}, {0, {3, 10}, {10, 1}});
  const StridedMap bottom = make({30, {7, 10}, {10, 1}}, {30, {7, 10}, {10, 1}});
  const auto once = [](std::vector<const StridedMap*> maps) { return covers_once(maps, 100); };
  EXPECT_TRUE(once({&left, &right}));
  EXPECT_TRUE(once({&bottom, &top}));
  EXPECT_FALSE(once({&left, &wide})) << "one column twice, one not at all";
  EXPECT_FALSE(once({&left}));
  EXPECT_FALSE(once({&left, &right, &top}));
  for (const MapSide side : {MapSide::kSource, MapSide::kTarget}) {
    EXPECT_FALSE(meet(left, right, side));
    EXPECT_FALSE(meet(top, bottom, side));
    EXPECT_TRUE(meet(left, wide, side));
    EXPECT_TRUE(meet(top, left, side));
  }
  // Steps without a common factor: every third unit, and every second one.
  const StridedMap thirds = make({0, {10}, {3}}, {0, {10}, {3}});
  const StridedMap odd = make({1, {10}, {2}}, {1, {10}, {2}});
  const StridedMap later = make({1, {3}, {6}}, {1, {3}, {6}});
  EXPECT_TRUE(meet(thirds, odd, MapSide::kTarget));
  EXPECT_FALSE(meet(thirds, later, MapSide::kTarget)) << "they interleave";
}

TEST(ValueCast, RoundsAsTheTypesDo) {
  EXPECT_EQ(f32_of_bf16(0x7f81), 0x7f810000U) << "a NaN keeps its payload";
  EXPECT_EQ(f32_of_bf16(0x8000), 0x80000000U);
  EXPECT_EQ(bf16_of_f32(0x3f808000), 0x3f80) << "a tie goes to even";
  EXPECT_EQ(bf16_of_f32(0x3f818000), 0x3f82);
  EXPECT_EQ(bf16_of_f32(0x7f7fffff), 0x7f80) << "the largest number rounds to infinity";
  EXPECT_EQ(bf16_of_f32(0xffffffff), 0x7fc0);
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    const bool nan = (bits & 0x7fff) > 0x7c00;
    if (!nan) {
      ASSERT_EQ(f16_of_f32(f32_of_f16(half)), half);
    }
    if ((bits & 0x7fff) <= 0x7f80) {
      ASSERT_EQ(bf16_of_f32(f32_of_bf16(half)), half);
    }
    if ((bits & 0x7fff) >= 0x7bff) continue;
    // The value halfway to the next number, and the values just beside it.
    const std::uint32_t step = f32_of_f16(half + 1) - f32_of_f16(half);
    const std::uint32_t middle = f32_of_f16(half) + step / 2;
    if ((bits & 0x7fff) < 0x400) continue;  // between denormals floats are not evenly spaced
    ASSERT_EQ(f16_of_f32(middle), half % 2 == 0 ? half : half + 1) << bits;
    ASSERT_EQ(f16_of_f32(middle - 1), half);
    ASSERT_EQ(f16_of_f32(middle + 1), half + 1);
  }
}

// The value that converts to `bits`, or nothing.
template <typename Cast>
std::optional<std::uint16_t> under(std::uint32_t bits) {
  std::uint16_t value = 0;
  if (!undo_cast<Cast>(bits, value)) return std::nullopt;
  return value;
}

TEST(ValueCast, WideningIsUndoneExactly) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    ASSERT_EQ(under<BF16ToF32>(f32_of_bf16(half)), half);
    const bool signalling = (bits & 0x7fff) > 0x7c00 && (bits & 0x200) == 0;
    ASSERT_EQ(under<F16ToF32>(f32_of_f16(half)), signalling ? half | 0x200 : half);
  }
  EXPECT_EQ(under<BF16ToF32>(0x3f800001), std::nullopt);
  EXPECT_EQ(under<F16ToF32>(0x3f801000), std::nullopt) << "between two of them";
  EXPECT_EQ(under<F16ToF32>(0x477ff000), std::nullopt) << "too large";
  EXPECT_EQ(under<F16ToF32>(0x7f800001), std::nullopt) << "a payload that is not one of them";
}

class StridedKernels : public ::testing::TestWithParam<HostKernels> {
 protected:
  const HostKernels& kernels() const { return GetParam(); }
  const HostKernels& reference() const { return all_host_kernels().front(); }
};

std::vector<std::uint32_t> offsets_of(Random& random, std::uint64_t units, Pattern pattern) {
  std::vector<std::uint32_t> offsets;
  for (std::uint32_t i = 0; i < units; ++i) {
    if (changes(random, pattern, i, units)) offsets.push_back(i);
  }
  return offsets;
}

// Both implementations give the same result, from unit `begin` of the source on.
void expect_same(const HostKernels& kernels, const HostKernels& reference, const StridedCase& each,
                 unsigned width, ValueCast cast, Pattern pattern, std::uint64_t begin) {
  SCOPED_TRACE(::testing::Message() << each.name << ", width " << width << ", cast "
                                    << static_cast<int>(cast) << ", from " << begin);
  const StridedMap map = map_of(each);
  Random random(width + begin + static_cast<unsigned>(pattern));
  const std::vector<std::uint32_t> offsets = offsets_of(random, each.source_units - begin, pattern);
  const unsigned from = source_bytes(cast, width);
  GuardedBytes values(offsets.size() * from, begin % 2 * from), found(offsets.size() * width);
  GuardedBytes target(each.target_units * width, begin % 3 * width), expected(target.size());
  fill_units(random, from, values.data(), offsets.size());
  fill_units(random, width, target.data(), each.target_units);
  std::copy_n(target.data(), target.size(), expected.data());

  GuardedBytes expected_found(found.size());
  const auto read = kernels.gather_strided(map, target.data(), width, begin, offsets.data(),
                                           offsets.size(), found.data());
  EXPECT_EQ(read, reference.gather_strided(map, expected.data(), width, begin, offsets.data(),
                                           offsets.size(), expected_found.data()));
  EXPECT_EQ(found.copy(), expected_found.copy());
  EXPECT_TRUE(found.intact());

  const auto written = kernels.scatter_strided(map, target.data(), width, begin, offsets.data(),
                                               offsets.size(), values.data(), cast);
  EXPECT_EQ(written, reference.scatter_strided(map, expected.data(), width, begin, offsets.data(),
                                               offsets.size(), values.data(), cast));
  EXPECT_EQ(written, read);
  EXPECT_EQ(target.copy(), expected.copy());
  EXPECT_TRUE(target.intact());
}

TEST_P(StridedKernels, MoveWhatReferenceMoves) {
  for (const StridedCase& each : cases()) {
    for (const unsigned width : kWidths) {
      for (const Pattern pattern : kAllPatterns) {
        for (const std::uint64_t begin : {std::uint64_t{0}, each.source_units / 3}) {
          expect_same(kernels(), reference(), each, width, ValueCast::kNone, pattern, begin);
        }
      }
    }
  }
}

TEST_P(StridedKernels, ConvertAsReferenceConverts) {
  constexpr std::pair<ValueCast, unsigned> kCasts[] = {
      {ValueCast::kBF16ToF32, 4}, {ValueCast::kF16ToF32, 4},  {ValueCast::kF32ToBF16, 2},
      {ValueCast::kF32ToF16, 2},  {ValueCast::kBF16ToF16, 2}, {ValueCast::kF16ToBF16, 2}};
  for (const StridedCase& each : cases()) {
    for (const auto& [cast, width] : kCasts) {
      expect_same(kernels(), reference(), each, width, cast, Pattern::kHalf, 0);
      expect_same(kernels(), reference(), each, width, cast, Pattern::kEverything, 1);
    }
  }
}

// A tensor of more than 2^32 units, of which the test reads a few: only the positions are that
// large.
TEST_P(StridedKernels, PositionsPast32BitsAreExact) {
  const std::uint64_t rows = std::uint64_t{1} << 22, columns = 2048;
  const std::uint64_t first_row = rows - 8;
  const StridedCase each{"the last rows' columns",
                         rows * columns,
                         8 * 16,
                         {first_row * columns + 100, {8, 16}, {columns, 1}},
                         {0, {8, 16}, {16, 1}}};
  const StridedMap map = map_of(each);
  std::vector<std::uint32_t> offsets(8 * columns);
  std::iota(offsets.begin(), offsets.end(), 0U);
  std::vector<std::uint16_t> values(offsets.size());
  std::iota(values.begin(), values.end(), std::uint16_t{1});
  GuardedBytes target(8 * 16 * 2);
  EXPECT_EQ(kernels().scatter_strided(map, target.data(), 2, first_row * columns, offsets.data(),
                                      offsets.size(), values.data(), ValueCast::kNone),
            8U * 16U);
  for (std::uint64_t row = 0; row < 8; ++row) {
    for (std::uint64_t column = 0; column < 16; ++column) {
      std::uint16_t value = 0;
      std::memcpy(&value, target.data() + (row * 16 + column) * 2, 2);
      ASSERT_EQ(value, static_cast<std::uint16_t>(row * columns + 100 + column + 1));
    }
  }
  EXPECT_TRUE(target.intact());
}

INSTANTIATE_TEST_SUITE_P(All, StridedKernels, ::testing::ValuesIn(kernels_under_test()),
                         [](const auto& param) { return test_name(param.param.name); });

}  // namespace
}  // namespace driftless
