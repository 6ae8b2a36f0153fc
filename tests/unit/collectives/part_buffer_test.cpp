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

TEST(PartPoolTest, ReusesMemoryAfterItsLastReader) {
  const auto pool = std::make_shared<PartPool>(10'000'000);
  const auto take = [&](std::uint64_t size) {
    PartBuffer buffer = pool->take(size);
    EXPECT_TRUE(buffer.resize(size));
    return pool->share(std::move(buffer));
  };
  auto first = take(4'000'000);
  const void* memory = first->bytes().data();
  auto second = take(4'000'000);
  EXPECT_NE(second->bytes().data(), memory) << "still in use";
  second.reset();
  first.reset();
  const auto third = take(3'900'000);
  EXPECT_EQ(third->bytes().data(), memory);
  EXPECT_EQ(third->bytes().size(), 3'900'000U);
  EXPECT_EQ(pool->take(1'000'000).capacity_bytes(), 0U) << "what is there is far larger";
}

TEST(PartPoolTest, KeepsNoMoreThanItMay) {
  const auto pool = std::make_shared<PartPool>(10'000);
  const auto give_back = [&](std::uint64_t size) {
    PartBuffer buffer;
    ASSERT_TRUE(buffer.resize(size));
    pool->share(std::move(buffer)).reset();
  };
  give_back(20'000);
  EXPECT_EQ(pool->take().capacity_bytes(), 0U);
  give_back(6'000);
  give_back(7'000);  // the one before goes
  EXPECT_EQ(pool->take().capacity_bytes(), 7'000U);
  EXPECT_EQ(pool->take().capacity_bytes(), 0U);
}

TEST(PartPoolTest, MayBeGivenBackAfterThePoolHasGone) {
  auto pool = std::make_shared<PartPool>(1000);
  auto owner = pool->share(pool->take(10));
  pool.reset();
  owner.reset();
}

}  // namespace
}  // namespace driftless
