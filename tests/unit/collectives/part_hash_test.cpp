// SPDX-License-Identifier: Apache-2.0
#include "collectives/part_hash.h"

#include <gtest/gtest.h>

#include <vector>

namespace driftless {
namespace {

std::vector<std::byte> bytes_of(std::size_t size) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i * 7);
  return bytes;
}

TEST(PartHashTest, FrontToBackItIsTheHashOfTheWhole) {
  const auto bytes = bytes_of(10'000);
  PartHash hash;
  for (std::size_t at = 0; at < bytes.size(); at += 999) {
    hash.wrote(at, std::span(bytes).subspan(at, std::min<std::size_t>(999, bytes.size() - at)));
    hash.wrote(0, {});  // nothing is nothing, wherever
  }
  EXPECT_EQ(hash.size_bytes(), bytes.size());
  ASSERT_TRUE(hash.hash().has_value());
  EXPECT_EQ(*hash.hash(), xxh3_128(bytes));
}

TEST(PartHashTest, OfNothingItIsTheHashOfNothing) {
  const PartHash hash;
  EXPECT_EQ(hash.size_bytes(), 0U);
  EXPECT_EQ(*hash.hash(), xxh3_128(std::span<const std::byte>()));
}

TEST(PartHashTest, WithAHoleOrASecondWriteThereIsNone) {
  const auto bytes = bytes_of(100);
  PartHash hole;
  hole.wrote(50, bytes);
  EXPECT_FALSE(hole.hash().has_value());
  EXPECT_EQ(hole.size_bytes(), 150U);
  PartHash twice;
  twice.wrote(0, bytes);
  twice.wrote(10, std::span(bytes).subspan(0, 5));
  EXPECT_FALSE(twice.hash().has_value());
  EXPECT_EQ(twice.size_bytes(), 100U);
}

}  // namespace
}  // namespace driftless
