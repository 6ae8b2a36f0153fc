// SPDX-License-Identifier: Apache-2.0
#include "core/version.h"

#include <gtest/gtest.h>

#include <string>

namespace driftless {
namespace {

TEST(Version, HasAtLeastSixDigits) {
  EXPECT_EQ(version_string(0), "000000");
  EXPECT_EQ(version_string(7), "000007");
  EXPECT_EQ(version_string(999'999), "999999");
  EXPECT_EQ(version_string(1'234'567), "1234567");
}

TEST(Version, IsReadBack) {
  for (const std::uint64_t version :
       {std::uint64_t{0}, std::uint64_t{7}, std::uint64_t{1'000'000}, kMaxVersion}) {
    const auto parsed = parse_version_string(version_string(version));
    ASSERT_TRUE(parsed.ok()) << version;
    EXPECT_EQ(*parsed, version);
  }
}

TEST(Version, RefusesWhatIsNotAVersion) {
  for (const std::string& bad :
       {std::string(), std::string("7"), std::string("00007"), std::string("-00007"),
        std::string("+000007"), std::string("000007 "), std::string(" 000007"),
        std::string("0x0007"), std::string("000007\0", 7), std::to_string(kMaxVersion + 1),
        std::string("99999999999999999999999")}) {
    EXPECT_EQ(parse_version_string(bad).status().code(), StatusCode::kCorrupt) << bad;
  }
}

TEST(Version, LongGarbageIsCutInTheMessage) {
  const auto parsed = parse_version_string(std::string(100'000, 'x'));
  ASSERT_FALSE(parsed.ok());
  EXPECT_LT(parsed.status().message().size(), 200U);
}

TEST(VersionId, ComparesRunAndVersion) {
  const VersionId id{{1, 2}, 3};
  EXPECT_EQ(id, (VersionId{{1, 2}, 3}));
  EXPECT_FALSE(id == (VersionId{{1, 2}, 4}));
  EXPECT_FALSE(id == (VersionId{{1, 3}, 3}));
}

}  // namespace
}  // namespace driftless
