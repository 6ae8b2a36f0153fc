// SPDX-License-Identifier: Apache-2.0
// Signature Version 4 against the examples in Amazon's documentation, and where credentials come
// from.
#include "collectives/object_store/signature_v4.h"

#include <gtest/gtest.h>

#include "collectives/object_store/credentials.h"
#include "collectives/object_store/medium.h"

namespace driftless::object_store {
namespace {

const Credentials kExample{"AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", ""};
constexpr std::string_view kExampleTime = "20130524T000000Z";
constexpr std::string_view kEmptyHash =
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

std::string signature_of(const RequestToSign& request) {
  const auto headers = sign_v4(request, kExample, "us-east-1", "s3", kExampleTime);
  EXPECT_TRUE(headers.ok());
  for (const auto& [name, value] : *headers) {
    if (name == "authorization") return value.substr(value.find("Signature=") + 10);
  }
  return "";
}

TEST(SignatureV4, GetObject) {
  const RequestToSign request{.method = "GET",
                              .host = "examplebucket.s3.amazonaws.com",
                              .path = "/test.txt",
                              .query = {},
                              .headers = {{"range", "bytes=0-9"}},
                              .payload_hash = std::string(kEmptyHash)};
  EXPECT_EQ(signature_of(request),
            "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41");
}

TEST(SignatureV4, ListObjects) {
  const RequestToSign request{.method = "GET",
                              .host = "examplebucket.s3.amazonaws.com",
                              .path = "/",
                              .query = {{"prefix", "J"}, {"max-keys", "2"}},
                              .headers = {},
                              .payload_hash = std::string(kEmptyHash)};
  EXPECT_EQ(signature_of(request),
            "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7");
}

TEST(SignatureV4, PresignedGet) {
  const NameValues query =
      presigned_query(kExample, "us-east-1", "s3", kExampleTime, std::chrono::seconds(86400));
  const auto signature = presign_v4("examplebucket.s3.amazonaws.com", "/test.txt", query, kExample,
                                    "us-east-1", "s3", kExampleTime);
  ASSERT_TRUE(signature.ok());
  EXPECT_EQ(*signature, "aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404");
}

TEST(SignatureV4, EncodesAllButPlainCharacters) {
  EXPECT_EQ(percent_encode("a b/c+d~", true), "a%20b/c%2Bd~");
  EXPECT_EQ(percent_encode("a/b=", false), "a%2Fb%3D");
  EXPECT_EQ(canonical_query({{"uploads", ""}, {"prefix", "a/b"}}), "prefix=a%2Fb&uploads=");
}

TEST(CredentialsFile, TakesTheProfileAndNothingElse) {
  constexpr std::string_view kText =
      "# comment\n[default]\naws_access_key_id = A\naws_secret_access_key=S\n\n[other]\n"
      "aws_access_key_id=B\naws_secret_access_key = T = \naws_session_token=U\n";
  const auto first = parse_credentials_file(kText, "default");
  ASSERT_TRUE(first.ok() && *first);
  EXPECT_EQ(**first, (Credentials{"A", "S", ""}));
  const auto other = parse_credentials_file(kText, "other");
  ASSERT_TRUE(other.ok() && *other);
  EXPECT_EQ(**other, (Credentials{"B", "T =", "U"}));
  const auto none = parse_credentials_file(kText, "third");
  ASSERT_TRUE(none.ok());
  EXPECT_FALSE(*none);
}

TEST(CredentialsFile, AnErrorNamesTheLineAndNotWhatIsInIt) {
  const auto refused = parse_credentials_file("[default]\nhush-hush\n", "default");
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.status().message().find("line 2"), std::string::npos);
  EXPECT_EQ(refused.status().message().find("hush"), std::string::npos);
}

TEST(Medium, NamesSortLikeNumbersAndStandForOnePublication) {
  const PublicationId seven{7, PublicationKind::kVersion}, anchor{7, PublicationKind::kAnchor};
  const PublicationId many{1'000'000'000'000, PublicationKind::kVersion};
  EXPECT_LT(version_key(seven), version_key(many));
  for (const PublicationId& id : {seven, anchor, many}) {
    EXPECT_EQ(parse_version_key(version_key(id)), id);
    const Attempt attempt{id, 0xfeed};
    EXPECT_EQ(parse_part_key(parts_prefix(attempt) + "part"), attempt);
  }
  const std::string parts = "parts/" + publication_name(seven);
  for (const char* other : {".000000000000FEED/part", ".feed/part", ".000000000000feed"}) {
    EXPECT_FALSE(parse_part_key(parts + other)) << other;
  }
  for (const char* name : {"7.version", "0000000000000000007.other", "", ".version", "7"}) {
    EXPECT_FALSE(parse_publication_name(name)) << name;
  }
}

TEST(Medium, AVersionsTextIsProvenByItsLastLine) {
  const std::string text = version_text({.manifest = "{\"a\": 1}\n", .attempt = 0xfeed});
  const auto version = parse_version_text(text, "it");
  ASSERT_TRUE(version.ok());
  EXPECT_EQ(version->manifest, "{\"a\": 1}\n");
  EXPECT_EQ(version->attempt, 0xfeedU);
  for (std::size_t size = 1; size < text.size(); ++size) {
    EXPECT_EQ(parse_version_text(text.substr(0, size), "it").status().code(), StatusCode::kCorrupt);
  }
  for (const std::size_t from_end : {2U, 18U}) {  // of the attempt, and the space before it
    std::string other = text;
    other[other.size() - from_end] ^= 0x20;
    EXPECT_EQ(parse_version_text(other, "it").status().code(), StatusCode::kCorrupt) << other;
  }
  const auto removed = parse_version_text("", "it");
  ASSERT_TRUE(removed.ok());
  EXPECT_TRUE(removed->removed);
}

}  // namespace
}  // namespace driftless::object_store
