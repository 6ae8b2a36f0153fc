// SPDX-License-Identifier: Apache-2.0
#include "formats/manifest.h"

#include <gtest/gtest.h>

#include <string>

#include "support/replaced.h"

namespace driftless {
namespace {

using testing::replaced;

Manifest example_manifest() {
  Manifest manifest;
  manifest.id = {Hash128{1, 2}, 7};
  manifest.base_version = 6;
  manifest.directory_layout = DirectoryLayout::kFlush;
  manifest.encoding = Encoding::kDeltasZstd;
  manifest.checksum = ChecksumKind::kBlake3;
  manifest.layout = {3, 4};
  manifest.base_digest = Digest{{5, 6}};
  manifest.digest = Digest{{7, 8}};
  manifest.changed_tensors = 1;
  manifest.changed_units = 9;
  manifest.total_units = 10;
  manifest.full_bytes = 20;
  manifest.payload_bytes = 11;
  manifest.files = {{"a.safetensors", 5, {9, 9}}, {"b.safetensors", 6, {8, 8}}};
  manifest.tensors = {{"model.\"quoted\" \xc3\xa9", "abcd"}};
  manifest.timings_ms = {{"process_ms", 1.5}};
  manifest.created = "2026-01-01T00:00:00Z";
  return manifest;
}

StatusCode manifest_code_of(const std::string& text) {
  return parse_manifest(text, "m").status().code();
}

TEST(ManifestTest, RoundTrips) {
  const auto parsed = parse_manifest(manifest_to_json(example_manifest()), "m");
  ASSERT_TRUE(parsed.ok()) << parsed.status().to_string();
  EXPECT_EQ(*parsed, example_manifest());
}

TEST(ManifestTest, RanksAndLocatorsAreWrittenOnlyWhereTheyAreSomething) {
  const std::string plain = manifest_to_json(example_manifest());
  for (const char* key : {"\"rank", "locator", "quantize_rule"})
    EXPECT_EQ(plain.find(key), std::string::npos);

  Manifest manifest = example_manifest();
  manifest.ranks = 3;
  manifest.quantize_rule = "linear";
  manifest.files[0].rank = 2;
  manifest.files[1].locator = ~std::uint64_t{0};
  for (const DirectoryLayout layout : {DirectoryLayout::kHfDelta, DirectoryLayout::kFlush,
                                       DirectoryLayout::kFrames, DirectoryLayout::kHdf5}) {
    manifest.directory_layout = layout;
    const auto parsed = parse_manifest(manifest_to_json(manifest), "m");
    ASSERT_TRUE(parsed.ok()) << parsed.status().to_string();
    EXPECT_EQ(*parsed, manifest);
    EXPECT_EQ(parse_directory_layout(to_string(layout)).value(), layout);
  }
  const std::string text = manifest_to_json(manifest);
  const auto refuses = [&text](const std::string& what, const std::string& by) {
    EXPECT_EQ(manifest_code_of(replaced(text, what, by)), StatusCode::kCorrupt) << by;
  };
  refuses("\"rank\":2", "\"rank\":3");  // of ranks 0, 1 and 2
  refuses("\"rank\":2", "\"rank\":-1");
  refuses("\"linear\"", "false");
  refuses("\"ranks\":3", "\"ranks\":0");
  refuses("\"ranks\":3", "\"ranks\":4294967296");
  refuses("18446744073709551615", "18446744073709551616");
}

TEST(ManifestTest, OnlyAFullVersionHasItselfAsBase) {
  Manifest manifest = example_manifest();
  manifest.id.version = 0;
  manifest.base_version = 0;
  EXPECT_EQ(manifest_code_of(manifest_to_json(manifest)), StatusCode::kCorrupt);
  manifest.encoding = Encoding::kFull;
  EXPECT_EQ(manifest_code_of(manifest_to_json(manifest)), StatusCode::kOk);
  manifest.id.version = 1;
  manifest.base_version = 1;
  EXPECT_EQ(manifest_code_of(manifest_to_json(manifest)), StatusCode::kOk);
  manifest.base_version = 2;
  EXPECT_EQ(manifest_code_of(manifest_to_json(manifest)), StatusCode::kCorrupt);
}

Manifest manifest_with_digests() {
  Manifest manifest = example_manifest();
  manifest.changed_tensors = 2;
  manifest.tensors = {{"a", "", Digest{{1, 2}}}, {"b", "abcd", Digest{{3, 4}}}};
  return manifest;
}

TEST(ManifestTest, DigestsOfTensorsRoundTripWithAndWithoutChecksums) {
  const Manifest manifest = manifest_with_digests();
  const std::string text = manifest_to_json(manifest);
  const auto parsed = parse_manifest(text, "m");
  ASSERT_TRUE(parsed.ok()) << parsed.status().to_string();
  EXPECT_EQ(*parsed, manifest);
  EXPECT_TRUE(parsed->has_tensor_digests());
  EXPECT_NE(text.find(R"({"name":"a","digest":"00000000000000010000000000000002"})"),
            std::string::npos)
      << text;
  EXPECT_FALSE(example_manifest().has_tensor_digests());
}

TEST(ManifestTest, AVersionWithoutChangesHasAllDigests) {
  Manifest manifest = example_manifest();
  manifest.tensors.clear();
  EXPECT_FALSE(manifest.has_tensor_digests()) << "one changed, which is not listed";
  manifest.changed_tensors = 0;
  EXPECT_TRUE(manifest.has_tensor_digests());
}

TEST(ManifestTest, RefusesWrongDigestsOfTensors) {
  const std::string text = manifest_to_json(manifest_with_digests());
  const auto refuses = [&text](const std::string& what, const std::string& by) {
    EXPECT_EQ(manifest_code_of(replaced(text, what, by)), StatusCode::kCorrupt) << by;
  };
  const std::string second = R"(,"digest":"00000000000000030000000000000004")";
  refuses(second, "");  // one of two has one
  refuses(R"("digest":"00000000000000010000000000000002")", R"("other":1)");
  refuses(second, R"(,"digest":"000000000000000300000000000004")");
  refuses(second, R"(,"digest":"f0000000000000030000000000000004")");  // outside the field
  refuses(second, R"(,"digest":"0000000000000003000000000000000g")");
  refuses(second, R"(,"digest":7)");
  refuses(second, R"(,"digest":null)");
  refuses(R"("changed_tensors":2)", R"("changed_tensors":3)");
  refuses(R"("name":"b")", R"("name":"a")");
  refuses(R"("name":"b")", R"("name":"")");
  refuses(R"({"name":"a","digest":"00000000000000010000000000000002"})", R"("a")");
}

TEST(ManifestTest, DigestsOfAFullVersionAddUp) {
  Manifest manifest = manifest_with_digests();
  manifest.encoding = Encoding::kFull;
  EXPECT_EQ(manifest_code_of(manifest_to_json(manifest)), StatusCode::kCorrupt);
  manifest.digest = Digest{{4, 6}};
  EXPECT_EQ(manifest_code_of(manifest_to_json(manifest)), StatusCode::kOk);
}

TEST(ManifestTest, ThePayloadIsWhatHoldsChangesOrWeights) {
  Manifest manifest = example_manifest();
  manifest.files = {{"model-00000-of-00002.safetensors", 5, {}},
                    {"model-00001-of-00002.safetensors", 6, {}},
                    {"model.safetensors.index.json", 100, {}},
                    {"tokenizer.model", 1000, {}}};
  for (const DirectoryLayout layout : {DirectoryLayout::kHfDelta, DirectoryLayout::kFlush}) {
    manifest.directory_layout = layout;
    EXPECT_EQ(payload_of(manifest), 11U);
  }
  manifest.files = {{"rank0000_000000.frame", 7, {}}, {"a dataset", 8, {}}};
  for (const DirectoryLayout layout : {DirectoryLayout::kFrames, DirectoryLayout::kHdf5}) {
    manifest.directory_layout = layout;
    EXPECT_EQ(payload_of(manifest), 15U);
  }
  manifest.files.clear();
  EXPECT_EQ(payload_of(manifest), 0U);
}

TEST(ManifestTest, PassesOverUnknownKeys) {
  const std::string text =
      replaced(manifest_to_json(example_manifest()), "{", "{\"later\":[1,{}],");
  const auto parsed = parse_manifest(text, "m");
  ASSERT_TRUE(parsed.ok()) << parsed.status().to_string();
  EXPECT_EQ(*parsed, example_manifest());
}

TEST(ManifestTest, RefusesEveryMissingKey) {
  for (const char* key :
       {"format", "format_version", "run", "version", "base_version", "layout", "encoding",
        "checksum", "weight_layout", "base_digest", "digest", "changed_tensors", "changed_units",
        "total_units", "full_bytes", "payload_bytes", "files", "tensors"}) {
    const std::string text =
        replaced(manifest_to_json(example_manifest()), concat("\"", key, "\":"), "\"gone\":");
    EXPECT_EQ(manifest_code_of(text), StatusCode::kCorrupt) << key;
  }
}

TEST(ManifestTest, RefusesANewerFormat) {
  const std::string text = replaced(manifest_to_json(example_manifest()), "\"format_version\":1",
                                    "\"format_version\":2");
  EXPECT_EQ(manifest_code_of(text), StatusCode::kUnsupported);
}

TEST(ManifestTest, RefusesAnUnknownEncoding) {
  const std::string text =
      replaced(manifest_to_json(example_manifest()), "deltas_zstd", "deltas_zip");
  EXPECT_EQ(manifest_code_of(text), StatusCode::kUnsupported);
}

TEST(ManifestTest, RefusesABaseThatIsNotBelow) {
  EXPECT_EQ(manifest_code_of(replaced(manifest_to_json(example_manifest()), "\"base_version\":6",
                                      "\"base_version\":7")),
            StatusCode::kCorrupt);
}

TEST(ManifestTest, RefusesFileNamesThatLeadElsewhere) {
  for (const char* name : {"../a", "a/b", "..", "a\\u0000b"}) {
    EXPECT_EQ(
        manifest_code_of(replaced(manifest_to_json(example_manifest()), "a.safetensors", name)),
        StatusCode::kCorrupt)
        << name;
  }
}

TEST(ManifestTest, RefusesAFileOrTensorTwice) {
  EXPECT_EQ(manifest_code_of(
                replaced(manifest_to_json(example_manifest()), "b.safetensors", "a.safetensors")),
            StatusCode::kCorrupt);
}

TEST(ManifestTest, RefusesMoreChangedThanThereIs) {
  EXPECT_EQ(manifest_code_of(replaced(manifest_to_json(example_manifest()), "\"changed_units\":9",
                                      "\"changed_units\":11")),
            StatusCode::kCorrupt);
}

TEST(ManifestTest, RefusesADigestOutsideItsField) {
  EXPECT_EQ(manifest_code_of(
                replaced(manifest_to_json(example_manifest()), "\"digest\":\"0", "\"digest\":\"f")),
            StatusCode::kCorrupt);
}

}  // namespace
}  // namespace driftless
