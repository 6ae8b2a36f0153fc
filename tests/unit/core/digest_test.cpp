// SPDX-License-Identifier: Apache-2.0
#include "core/digest.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

namespace driftless {
namespace {

constexpr std::uint64_t kP = kDigestPrime;

// The definition in digest.h, word by word.
Digest digest_by_definition(const std::string& name, std::vector<unsigned char> bytes) {
  bytes.resize((bytes.size() + 3) / 4 * 4);
  const DigestTensorKey key = digest_tensor_key(name);
  Digest sum;
  for (std::size_t w = 0; w < bytes.size() / 4; ++w) {
    const std::uint64_t word = bytes[4 * w] | (bytes[4 * w + 1] << 8) | (bytes[4 * w + 2] << 16) |
                               (std::uint64_t{bytes[4 * w + 3]} << 24);
    for (std::size_t lane = 0; lane < kDigestLanes; ++lane) {
      const std::uint64_t place = digest_place_keys().at(lane, w % kDigestBlockWords);
      const std::uint64_t block = digest_block_key(key, w / kDigestBlockWords, lane);
      sum.lanes[lane] =
          digest_add(sum.lanes[lane], digest_multiply(digest_multiply(block, place), word));
    }
  }
  return sum;
}

TEST(DigestArithmetic, FoldsAnyNumber) {
  EXPECT_EQ(digest_fold(0), 0U);
  EXPECT_EQ(digest_fold(kP - 1), kP - 1);
  EXPECT_EQ(digest_fold(kP), 0U);
  EXPECT_EQ(digest_fold(kP + 1), 1U);
  EXPECT_EQ(digest_fold(~std::uint64_t{0}), ~std::uint64_t{0} % kP);
  EXPECT_EQ(digest_fold(7 * kP + 6), 6U);
}

TEST(DigestArithmetic, AgreesWithWideArithmetic) {
  std::mt19937_64 random(1);
  std::vector<std::uint64_t> numbers{0, 1, 2, kP - 1, kP - 2, kP / 2, kP / 2 + 1};
  for (int i = 0; i < 200; ++i) numbers.push_back(random() % kP);
  for (const std::uint64_t a : numbers) {
    EXPECT_EQ(digest_fold(a * 8 + 3), (a * 8 + 3) % kP);
    for (const std::uint64_t b : numbers) {
      const auto wide = static_cast<unsigned __int128>(a);
      ASSERT_EQ(digest_add(a, b), static_cast<std::uint64_t>((wide + b) % kP));
      ASSERT_EQ(digest_subtract(a, b), static_cast<std::uint64_t>((wide + kP - b) % kP));
      ASSERT_EQ(digest_multiply(a, b), static_cast<std::uint64_t>((wide * b) % kP));
    }
  }
}

TEST(Digest, AddsAndSubtracts) {
  const Digest a{{kP - 1, 5}};
  const Digest b{{3, kP - 2}};
  EXPECT_EQ(a + b, (Digest{{2, 3}}));
  EXPECT_EQ((a + b) - b, a);
  EXPECT_EQ(a - a, Digest());
  EXPECT_EQ(a + b, b + a);
}

TEST(Digest, HexIsReadBackAndLanesMustBeBelowThePrime) {
  const Digest digest{{0x0123456789abcdefULL, kP - 1}};
  EXPECT_EQ(to_hex(digest), "0123456789abcdef1ffffffffffffffe");
  const auto parsed = digest_from_hex(to_hex(digest));
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(*parsed, digest);
  for (const std::string bad :
       {"1fffffffffffffff0000000000000000", "00000000000000001fffffffffffffff",
        "ffffffffffffffff0000000000000000", "12"}) {
    EXPECT_EQ(digest_from_hex(bad).status().code(), StatusCode::kCorrupt) << bad;
  }
}

// The values below were computed apart from this code, from the definition. They are part of every
// manifest that was ever written: a change here makes old versions unverifiable.
TEST(DigestDefinition, PlaceKeysAreFixed) {
  const DigestPlaceKeys& keys = digest_place_keys();
  EXPECT_EQ(keys.at(0, 0), 0x220a839b1dcdafULL);
  EXPECT_EQ(keys.at(0, 1023), 0xcdf2105b2a3571ULL);
  EXPECT_EQ(keys.at(1, 0), 0xd6409c7776d986ULL);
  EXPECT_EQ(keys.at(1, 1023), 0x8b3bf550dddf02ULL);
  std::vector<std::byte> all;
  for (std::size_t lane = 0; lane < kDigestLanes; ++lane) {
    for (std::size_t place = 0; place < kDigestBlockWords; ++place) {
      EXPECT_LT(keys.low[lane][place], 1U << 28);
      EXPECT_LT(keys.high[lane][place], 1U << 28);
      for (unsigned shift = 0; shift < 64; shift += 8) {
        all.push_back(static_cast<std::byte>(keys.at(lane, place) >> shift));
      }
    }
  }
  EXPECT_EQ(to_hex(xxh3_128(all)), "350c4eaad42d38c0c1c33288dc7b0438");
}

TEST(DigestDefinition, BlockKeysAreFixed) {
  const DigestTensorKey key = digest_tensor_key("model.norm.weight");
  EXPECT_EQ(digest_block_key(key, 0, 0), 0x1e580c01596204acULL);
  EXPECT_EQ(digest_block_key(key, 0, 1), 0xe54450b115867abULL);
  EXPECT_EQ(digest_block_key(key, 1, 0), 0x77b3546335a44c8ULL);
  EXPECT_EQ(digest_block_key(key, std::uint64_t{1} << 40, 1), 0x62d65482a65b168ULL);
}

TEST(DigestDefinition, DigestOfKnownBytesIsFixed) {
  std::vector<unsigned char> bytes(4099);  // over a block's end, and not whole words
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<unsigned char>(i * 7 + 3);
  EXPECT_EQ(to_hex(digest_by_definition("model.norm.weight", bytes)),
            "1b585a8bdb8cd0351c554c7eb1874824");
}

TEST(DigestDefinition, DependsOnTensorsPlacesAndBlocks) {
  std::vector<unsigned char> bytes(2 * kDigestBlockBytes);
  bytes[0] = 1;
  const Digest first = digest_by_definition("a", bytes);
  EXPECT_NE(to_hex(first), to_hex(digest_by_definition("b", bytes)));
  std::swap(bytes[0], bytes[4]);
  EXPECT_NE(to_hex(first), to_hex(digest_by_definition("a", bytes)));
  std::swap(bytes[4], bytes[kDigestBlockBytes]);
  EXPECT_NE(to_hex(first), to_hex(digest_by_definition("a", bytes)));
}

TEST(DigestDefinition, PiecesAddUpInAnyOrder) {
  std::mt19937_64 random(2);
  std::vector<unsigned char> whole(3 * kDigestBlockBytes / 2);
  for (unsigned char& byte : whole) byte = static_cast<unsigned char>(random());
  std::vector<unsigned char> even(whole.size());
  std::vector<unsigned char> odd(whole.size());
  for (std::size_t i = 0; i < whole.size(); ++i) (i % 2 == 0 ? even : odd)[i] = whole[i];
  EXPECT_EQ(digest_by_definition("t", odd) + digest_by_definition("t", even),
            digest_by_definition("t", whole));
}

}  // namespace
}  // namespace driftless
