// SPDX-License-Identifier: Apache-2.0
#include "plugin/publish/batch_memory.h"

#include <gtest/gtest.h>

#include <cstring>

namespace driftless {
namespace {

TEST(BatchMemory, PiecesOfABatchDoNotOverlap) {
  BatchMemory memory(4096);
  std::vector<std::pair<std::byte*, std::uint64_t>> pieces;
  for (const std::uint64_t bytes : {1U, 4095U, 0U, 64U, 10'000U, 7U, 4096U, 1U}) {
    pieces.emplace_back(memory.take(bytes), bytes);
    std::memset(pieces.back().first, static_cast<int>(pieces.size()), bytes);
  }
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const auto [at, bytes] = pieces[i];
    EXPECT_EQ(std::count(at, at + bytes, static_cast<std::byte>(i + 1)),
              static_cast<std::ptrdiff_t>(bytes));
  }
}

TEST(BatchMemory, TheLargestChunkIsUsedAgain) {
  BatchMemory memory(4096);
  std::byte* const first = memory.take(4000);
  memory.reset();
  EXPECT_EQ(memory.take(64), first);
  std::byte* const large = memory.take(100'000);
  memory.reset();
  EXPECT_EQ(memory.take(1), large);
  EXPECT_EQ(memory.take(1), large + BatchMemory::kAlignment);
}

}  // namespace
}  // namespace driftless
