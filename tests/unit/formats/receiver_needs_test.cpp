// SPDX-License-Identifier: Apache-2.0
#include "formats/receiver_needs.h"

#include <gtest/gtest.h>

#include "formats/zstd_stream.h"

namespace driftless {
namespace {

// A tensor-parallel rank of eight of a large model.
ReceiverNeeds large_needs() {
  ReceiverNeeds needs;
  needs.encodings = {Encoding::kDeltas, Encoding::kFull};
  needs.old_values = needs.ranges = true;
  needs.run = {0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9};
  needs.layout = {1, 2};
  for (int layer = 0; layer < 96; ++layer) {
    for (int matrix = 0; matrix < 7; ++matrix) {
      const bool rows = matrix < 5;
      needs.tensors.push_back({TensorNeed::Kind::kSlice, rows ? 0U : 1U, rows ? 3 * 1024U : 3072U,
                               matrix < 2 ? 128U : 1024U});
    }
    for (int norm = 0; norm < 2; ++norm) needs.tensors.push_back({});
    for (int expert = 0; expert < 8; ++expert) {
      needs.tensors.push_back({expert == 3 ? TensorNeed::Kind::kAll : TensorNeed::Kind::kNothing});
    }
  }
  return needs;
}

TEST(ReceiverNeeds, ComeBackAsTheyWereInLittleRoom) {
  const ReceiverNeeds needs = large_needs();
  const auto text = needs_to_text(needs, 1024);
  ASSERT_TRUE(text.ok()) << text.status().to_string();
  EXPECT_LE(text->size(), 512U);
  const auto back = parse_needs(*text, "receiver");
  ASSERT_TRUE(back.ok()) << back.status().to_string();
  EXPECT_EQ(*back, needs);
}

TEST(ReceiverNeeds, NameTheCheckpointThatIsPatched) {
  ReceiverNeeds needs = large_needs();
  std::string path = "/";
  for (int i = 0; i < 3000; ++i) path += static_cast<char>('0' + i * 7919 % 75);
  for (const std::string& directory : {std::string("/a//b/./c/"), path}) {
    needs.checkpoint = reported_directory(directory);
    needs.host = "node-7";
    const auto text = needs_to_text(needs, 1024);
    ASSERT_TRUE(text.ok()) << text.status().to_string();
    EXPECT_LE(text->size(), 1024U);
    const auto back = parse_needs(*text, "receiver");
    ASSERT_TRUE(back.ok()) << back.status().to_string();
    EXPECT_EQ(back->checkpoint, needs.checkpoint);
    EXPECT_EQ(back->host, needs.host);
  }
  EXPECT_EQ(reported_directory("/a//b/./c/"), "/a/b/c");
  EXPECT_EQ(reported_directory(path), path.substr(path.size() - 512));
  needs.checkpoint = "/no\xff/utf-8";
  EXPECT_TRUE(needs_to_text(needs, 1024).ok());
}

TEST(ReceiverNeeds, WantEverythingIfTheyDoNotFit) {
  ReceiverNeeds needs = large_needs();
  for (std::size_t i = 0; i < needs.tensors.size(); ++i) {
    needs.tensors[i] = {TensorNeed::Kind::kSlice, 0, i * 7919 % 65'537, 1 + i * 104'729 % 65'537};
  }
  const auto text = needs_to_text(needs, 1024);
  ASSERT_TRUE(text.ok()) << text.status().to_string();
  EXPECT_LE(text->size(), 1024U);
  const auto back = parse_needs(*text, "receiver");
  ASSERT_TRUE(back.ok()) << back.status().to_string();
  EXPECT_TRUE(back->tensors.empty());
  EXPECT_EQ(back->encodings, needs.encodings);
}

std::string packed(std::string_view json) {
  auto zstd = ZstdPacker::create();
  std::vector<std::byte> out;
  EXPECT_TRUE(zstd->append(std::as_bytes(std::span(json.data(), json.size())), out).ok());
  return {reinterpret_cast<const char*>(out.data()), out.size()};
}

TEST(ReceiverNeeds, ThatAreDamagedOrOutOfBoundsAreRefused) {
  const std::string head =
      R"({"format":"driftless_needs","format_version":1,"encodings":["deltas","new"],)";
  const std::string layout = R"("layout":"00000000000000010000000000000002",)";
  EXPECT_TRUE(parse_needs(packed(head + R"("old_values":true,"ranges":false})"), "r").ok());
  for (const std::string& rest :
       {std::string(R"("old_values":1,"ranges":false})"), std::string(R"("ranges":false})"),
        R"("old_values":true,"ranges":true,)" + layout + R"("slices":[],"tensors":[2]})",
        R"("old_values":true,"ranges":true,)" + layout + R"("slices":[0,1,0],"tensors":[2]})",
        R"("old_values":true,"ranges":true,)" + layout + R"("slices":[256,1,1],"tensors":[2]})",
        R"("old_values":true,"ranges":true,)" + layout + R"("slices":[0,1],"tensors":[2]})",
        R"("old_values":true,"ranges":true,)" + layout + R"("slices":[],"tensors":[-1]})"}) {
    EXPECT_FALSE(parse_needs(packed(head + rest), "r").ok()) << rest;
  }
  EXPECT_FALSE(parse_needs("", "r").ok());
  EXPECT_FALSE(parse_needs(packed(std::string(20 << 20, ' ')), "r").ok()) << "a bomb";
  const std::string good = *needs_to_text(large_needs(), 1024);
  for (std::size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 16);
    const auto read = parse_needs(bad, "r");  // no crash; zstd's frames have no hash of their own
    EXPECT_FALSE(parse_needs(good.substr(0, i), "r").ok());
  }
}

}  // namespace
}  // namespace driftless
