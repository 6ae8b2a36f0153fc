// SPDX-License-Identifier: Apache-2.0
#include "collectives/part_buffer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace driftless {
namespace {

TEST(PartBufferTest, HoldsWhatWasWrittenAndZerosBetween) {
  PartBuffer buffer;
  EXPECT_TRUE(buffer.bytes().empty());
  std::vector<std::byte> expected;
  const auto write = [&](std::uint64_t offset, std::size_t size, int value) {
    const std::vector<std::byte> bytes(size, static_cast<std::byte>(value));
    ASSERT_TRUE(buffer.write(offset, bytes));
    expected.resize(std::max<std::size_t>(expected.size(), offset + size));
    std::ranges::copy(bytes, expected.begin() + static_cast<std::ptrdiff_t>(offset));
  };
  write(0, 5000, 1);
  write(5000, 1, 2);
  write(20'000, 100'000, 3);  // a hole
  write(10, 10, 4);
  write(119'999, 300'000, 5);
  EXPECT_TRUE(std::ranges::equal(buffer.bytes(), expected));
}

TEST(PartBufferTest, WhatCannotBeHeldChangesNothing) {
  PartBuffer buffer;
  const std::vector<std::byte> bytes(10);
  ASSERT_TRUE(buffer.write(0, bytes));
  EXPECT_FALSE(buffer.write(~std::uint64_t{0} - 5, bytes));
  EXPECT_FALSE(buffer.write(~std::uint64_t{0} / 2, bytes));
  EXPECT_EQ(buffer.bytes().size(), 10U);
}

}  // namespace
}  // namespace driftless
