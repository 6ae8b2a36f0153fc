// SPDX-License-Identifier: Apache-2.0
#include "formats/checksum.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "core/hash128.h"
#include "support/safetensors_bytes.h"

namespace driftless {
namespace {

using testing::bytes_of;

constexpr ChecksumKind kAll[] = {ChecksumKind::kXxh3_128, ChecksumKind::kBlake3,
                                 ChecksumKind::kAdler32};

TEST(Checksum, NamesRoundTrip) {
  for (const ChecksumKind kind : kAll) {
    const Result<ChecksumKind> parsed = parse_checksum_kind(to_string(kind));
    ASSERT_TRUE(parsed.ok());
    EXPECT_EQ(*parsed, kind);
  }
  EXPECT_EQ(to_string(ChecksumKind::kXxh3_128), "xxh3-128");
}

TEST(Checksum, RefusesUnknownNamesListingTheKnown) {
  for (const std::string name : {"", "md5", "XXH3-128", "xxh3_128", "blake3 ", "blake3\n"}) {
    const Status status = parse_checksum_kind(name).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << name;
    EXPECT_NE(status.message().find("blake3 and adler32"), std::string_view::npos);
    EXPECT_EQ(status.message().find('\n'), std::string_view::npos);
  }
}

// Values made by other implementations (Python's xxhash, blake3, zlib).
TEST(Checksum, GivesTheKnownValues) {
  EXPECT_EQ(checksum_hex(ChecksumKind::kXxh3_128, {}), "99aa06d3014798d86001c324468d497f");
  EXPECT_EQ(checksum_hex(ChecksumKind::kXxh3_128, bytes_of("abc")),
            "06b05ab6733a618578af5f94892f3950");
  EXPECT_EQ(checksum_hex(ChecksumKind::kBlake3, {}),
            "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262");
  EXPECT_EQ(checksum_hex(ChecksumKind::kBlake3, bytes_of("abc")),
            "6437b3ac38465133ffb63b75273a8db548c558465d79db03fd359c6cd5bd9d85");
  EXPECT_EQ(checksum_hex(ChecksumKind::kAdler32, {}), "00000001");
  EXPECT_EQ(checksum_hex(ChecksumKind::kAdler32, bytes_of("Wikipedia")), "11e60398");
  EXPECT_EQ(checksum_hex(ChecksumKind::kAdler32, bytes_of("a")), "00620062");
}

TEST(Checksum, DoesNotDependOnThePieces) {
  std::mt19937_64 random(5);
  std::vector<std::byte> bytes(300'001);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  for (const ChecksumKind kind : kAll) {
    const std::string whole = checksum_hex(kind, bytes);
    EXPECT_EQ(whole.size(), kind == ChecksumKind::kXxh3_128 ? 32U
                            : kind == ChecksumKind::kBlake3 ? 64U
                                                            : 8U);
    for (int round = 0; round < 10; ++round) {
      Checksum checksum(kind);
      checksum.update({});
      for (std::size_t at = 0; at < bytes.size();) {
        const std::size_t count = std::min<std::size_t>(random() % 40'000, bytes.size() - at);
        checksum.update(std::span(bytes).subspan(at, count));
        EXPECT_FALSE(checksum.hex().empty());  // looking does not disturb
        checksum.update({});
        at += count;
      }
      EXPECT_EQ(checksum.hex(), whole) << to_string(kind);
    }
    bytes[150'000] ^= std::byte{1};
    EXPECT_NE(checksum_hex(kind, bytes), whole) << to_string(kind);
    bytes[150'000] ^= std::byte{1};
  }
}

TEST(Checksum, AgreesWithTheHashOfTheCore) {
  const std::string text(10'000, 'q');
  EXPECT_EQ(checksum_hex(ChecksumKind::kXxh3_128, bytes_of(text)), to_hex(xxh3_128(text)));
}

TEST(Checksum, ACheckSumCanMove) {
  for (const ChecksumKind kind : kAll) {
    Checksum first(kind);
    first.update(bytes_of("ab"));
    Checksum second = std::move(first);
    second.update(bytes_of("c"));
    EXPECT_EQ(second.hex(), checksum_hex(kind, bytes_of("abc")));
  }
}

}  // namespace
}  // namespace driftless
