// SPDX-License-Identifier: Apache-2.0
// cuda::CaptureBatch stores or counts every unit that differs.
#include <gtest/gtest.h>

#include <random>

#include "gpu/captured.h"

namespace driftless {
namespace {

using namespace driftless::testing;

struct Sides {
  std::vector<std::byte> before, after;
  std::vector<std::uint32_t> differing;
};

// One unit in `every` differs; in a stretch of 80 KB all units differ.
Sides make_sides(std::uint64_t units, unsigned unit_bytes, unsigned every) {
  std::mt19937 random(units + unit_bytes);
  Sides sides;
  sides.before.resize(units * unit_bytes);
  for (std::byte& byte : sides.before) byte = static_cast<std::byte>(random());
  sides.after = sides.before;
  for (std::uint64_t i = 0; i < units; ++i) {
    const std::uint64_t at = i * unit_bytes;
    const bool all = at >= 65536 && at < 65536 + 80000;
    if (!all && random() % every != 0) continue;
    sides.after[at + random() % unit_bytes] ^= std::byte{0x40};
    sides.differing.push_back(static_cast<std::uint32_t>(i));
  }
  return sides;
}

std::vector<std::byte> picked(const std::vector<std::byte>& from, unsigned unit_bytes,
                              const std::vector<std::uint32_t>& positions) {
  std::vector<std::byte> values;
  for (const std::uint32_t position : positions) {
    const auto begin = from.begin() + std::ptrdiff_t{position} * unit_bytes;
    values.insert(values.end(), begin, begin + unit_bytes);
  }
  return values;
}

class Capture : public ::testing::TestWithParam<unsigned> {};
INSTANTIATE_TEST_SUITE_P(Widths, Capture, ::testing::Values(1, 2, 4, 8));

TEST_P(Capture, KeepsWhatDiffersWithItsOldValues) {
  const unsigned width = GetParam();
  for (const std::uint64_t units : {1U, 77U, 50'000U, 400'001U}) {
    for (const std::uint64_t shift : {0U, width}) {
      const Sides sides = make_sides(units, width, 90);
      const DeviceBytes before(sides.before, shift), after(sides.after);
      const Captured found = capture(before, after, units, width, ValueCast::kNone, units);
      EXPECT_EQ(found.changed, sides.differing.size());
      ASSERT_EQ(found.positions, sides.differing);
      EXPECT_EQ(found.values, picked(sides.after, width, sides.differing));
      EXPECT_EQ(found.old_values, picked(sides.before, width, sides.differing));
    }
  }
}

TEST_P(Capture, CountsWhatFindsNoRoom) {
  const unsigned width = GetParam();
  const std::uint64_t units = 400'001;
  const Sides sides = make_sides(units, width, 90);
  const DeviceBytes before(sides.before), after(sides.after);
  const Captured found =
      capture(before, after, units, width, ValueCast::kNone, sides.differing.size() / 2);
  EXPECT_EQ(found.changed, sides.differing.size());
  EXPECT_GT(found.lost, 0U);
  EXPECT_EQ(found.positions.size() + found.lost, found.changed);
  EXPECT_EQ(found.values, picked(sides.after, width, found.positions));
  EXPECT_EQ(found.old_values, picked(sides.before, width, found.positions));
}

}  // namespace
}  // namespace driftless
