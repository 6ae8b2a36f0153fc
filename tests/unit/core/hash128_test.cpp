// SPDX-License-Identifier: Apache-2.0
#include "core/hash128.h"

#include <gtest/gtest.h>

#include <string>

namespace driftless {
namespace {

TEST(Hash128, Xxh3KnownAnswers) {
  EXPECT_EQ(to_hex(xxh3_128("")), "99aa06d3014798d86001c324468d497f");
  EXPECT_EQ(to_hex(xxh3_128("driftless")), "565b891fb53f1972ed7dcc3d4f69c4f4");
}

TEST(Hash128, BytesAndTextAgree) {
  const std::string text = "some bytes\0with a NUL";
  EXPECT_EQ(xxh3_128(text), xxh3_128(std::as_bytes(std::span(text))));
}

TEST(Hash128, HexIsMostSignificantFirstAndReadBack) {
  const Hash128 hash{0x0123456789abcdefULL, 0xfedcba9876543210ULL};
  EXPECT_EQ(to_hex(hash), "0123456789abcdeffedcba9876543210");
  const auto parsed = hash128_from_hex(to_hex(hash));
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(*parsed, hash);
}

TEST(Hash128, HexMustBeExactly32LowercaseDigits) {
  const std::string good(32, 'a');
  EXPECT_TRUE(hash128_from_hex(good).ok());
  for (const std::string& bad :
       {std::string(), good.substr(1), good + "a", std::string(32, 'A'), std::string(31, 'a') + "g",
        std::string(31, 'a') + '\0', concat("0x", good.substr(2)), concat(" ", good.substr(1))}) {
    EXPECT_EQ(hash128_from_hex(bad).status().code(), StatusCode::kCorrupt) << bad;
  }
}

TEST(Hash128, OrdersByHighThenLow) {
  EXPECT_LT((Hash128{1, 9}), (Hash128{2, 0}));
  EXPECT_LT((Hash128{1, 1}), (Hash128{1, 2}));
  EXPECT_TRUE(Hash128{}.is_zero());
  EXPECT_FALSE((Hash128{0, 1}).is_zero());
  EXPECT_FALSE((Hash128{1, 0}).is_zero());
}

TEST(Hash128, RandomOnesDiffer) {
  const Hash128 first = random_hash128();
  const Hash128 second = random_hash128();
  EXPECT_NE(first, second);
  EXPECT_FALSE(first.is_zero());
}

}  // namespace
}  // namespace driftless
