// SPDX-License-Identifier: Apache-2.0
#include "core/kept_memory.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

namespace driftless {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

TEST(KeptMemory, WhatWasGivenBackIsUsedAgain) {
  KeptMemory memory(64 * kMiB);
  std::shared_ptr<std::byte> first = memory.take(3 * kMiB);
  ASSERT_NE(first, nullptr);
  std::memset(first.get(), 1, 3 * kMiB);
  const std::byte* const where = first.get();
  const std::shared_ptr<std::byte> second = memory.take(3 * kMiB);
  EXPECT_NE(second.get(), where) << "two owners of the same memory";
  EXPECT_EQ(memory.kept_bytes(), 0U);
  first.reset();
  EXPECT_GE(memory.kept_bytes(), 3 * kMiB);
  // A little more, as the next version may have.
  first = memory.take(3 * kMiB + kMiB / 16);
  EXPECT_EQ(first.get(), where);
  std::memset(first.get(), 2, 3 * kMiB + kMiB / 16);
  EXPECT_EQ(memory.kept_bytes(), 0U);
}

TEST(KeptMemory, AnyCopyOfThePointerHoldsIt) {
  KeptMemory memory(64 * kMiB);
  std::shared_ptr<std::byte> first = memory.take(kMiB);
  const std::shared_ptr<const void> copy = first;
  first.reset();
  EXPECT_EQ(memory.kept_bytes(), 0U);
}

TEST(KeptMemory, KeepsNoMoreThanItMay) {
  KeptMemory memory(4 * kMiB);
  std::vector<std::shared_ptr<std::byte>> taken;
  for (int i = 0; i < 16; ++i) taken.push_back(memory.take(kMiB));
  taken.clear();
  EXPECT_LE(memory.kept_bytes(), 4 * kMiB);
  EXPECT_GT(memory.kept_bytes(), 0U);
  memory.take(16 * kMiB).reset();
  EXPECT_LE(memory.kept_bytes(), 4 * kMiB);
}

TEST(KeptMemory, SmallMemoryIsNotKept) {
  KeptMemory memory(4 * kMiB);
  for (const std::uint64_t bytes :
       {std::uint64_t{0}, std::uint64_t{1}, KeptMemory::kLeastBytes - 1}) {
    const std::shared_ptr<std::byte> small = memory.take(bytes);
    ASSERT_NE(small, nullptr) << bytes;
    std::memset(small.get(), 1, bytes);
  }
  EXPECT_EQ(memory.kept_bytes(), 0U);
}

TEST(KeptMemory, LargeMemoryIsNotTakenForLittle) {
  KeptMemory memory(256 * kMiB);
  const std::byte* const where = [&] {
    const std::shared_ptr<std::byte> large = memory.take(64 * kMiB);
    return large.get();
  }();
  EXPECT_NE(memory.take(kMiB).get(), where);
}

TEST(KeptMemory, WhatIsIdleIsFreed) {
  KeptMemory memory(64 * kMiB);
  memory.take(32 * kMiB).reset();
  EXPECT_GE(memory.kept_bytes(), 32 * kMiB);
  for (std::uint64_t i = 0; i <= KeptMemory::kIdleTakes; ++i) memory.take(kMiB).reset();
  EXPECT_LT(memory.kept_bytes(), 32 * kMiB);
  EXPECT_GT(memory.kept_bytes(), 0U) << "what is used is kept";
}

TEST(KeptMemory, MemoryOutlivesIt) {
  std::shared_ptr<std::byte> left;
  {
    KeptMemory memory(64 * kMiB);
    left = memory.take(kMiB);
  }
  std::memset(left.get(), 3, kMiB);
  left.reset();  // a sanitizer sees whether it is freed
}

TEST(KeptMemory, MoreThanThereCanBeIsNothing) {
  KeptMemory memory(64 * kMiB);
  EXPECT_EQ(memory.take(~std::uint64_t{0}), nullptr);
  EXPECT_EQ(take_memory(nullptr, ~std::uint64_t{0}), nullptr);
  EXPECT_NE(take_memory(nullptr, kMiB), nullptr);
  EXPECT_NE(take_memory(&memory, kMiB), nullptr);
}

// Nobody has memory that another thread has.
TEST(KeptMemory, ManyThreadsShareIt) {
  KeptMemory memory(8 * kMiB);
  std::vector<std::thread> threads;
  std::atomic<int> mixed = 0;
  for (int number = 1; number <= 4; ++number) {
    threads.emplace_back([&, number] {
      for (std::uint64_t i = 0; i < 200; ++i) {
        const std::uint64_t bytes = KeptMemory::kLeastBytes * (1 + i % 7);
        const std::shared_ptr<std::byte> taken = memory.take(bytes);
        std::memset(taken.get(), number, bytes);
        std::this_thread::yield();
        for (std::uint64_t at = 0; at < bytes; at += 997) {
          if (taken.get()[at] != static_cast<std::byte>(number)) ++mixed;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(mixed, 0);
  EXPECT_LE(memory.kept_bytes(), 8 * kMiB);
}

}  // namespace
}  // namespace driftless
