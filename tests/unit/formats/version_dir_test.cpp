// SPDX-License-Identifier: Apache-2.0
#include "formats/version_dir.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "formats/flush_file.h"
#include "formats/frame.h"
#include "support/temp_dir.h"

namespace driftless {
namespace {

using testing::TempDir;

class VersionDirTest : public ::testing::Test {
 protected:
  // A published version with an index and one "payload" file (its content is not looked at here).
  void publish(std::uint64_t version) {
    auto writer = VersionWriter::create(fs_, dir_.path(), version);
    ASSERT_TRUE(writer.ok()) << writer.status().to_string();
    HfDeltaIndex index;
    index.ours = true;
    index.version = version;
    index.base_version = version - 1;
    index.encoding = Encoding::kXor;
    index.weight_map["t"] = "model-00000-of-00001.safetensors";
    ASSERT_TRUE(
        write_text(fs_, writer->file_path("model-00000-of-00001.safetensors"), "data").ok());
    ASSERT_TRUE(write_text(fs_, writer->file_path(kIndexName), index_to_json(index)).ok());
    Manifest manifest;
    manifest.id = {{1, 1}, version};
    manifest.base_version = version - 1;
    const Status published = writer->publish(manifest);
    ASSERT_TRUE(published.ok()) << published.to_string();
  }

  // A version of frames, or of hdf5, with this payload file.
  void publish_parts(std::uint64_t version, DirectoryLayout layout, std::string_view file) {
    auto writer = VersionWriter::create(fs_, dir_.path(), version);
    ASSERT_TRUE(writer.ok()) << writer.status().to_string();
    ASSERT_TRUE(write_text(fs_, writer->file_path(file), "data").ok());
    Manifest manifest;
    manifest.id = {{1, 1}, version};
    manifest.base_version = version - 1;
    manifest.directory_layout = layout;
    manifest.encoding = Encoding::kDeltas;
    const Status published = writer->publish(manifest);
    ASSERT_TRUE(published.ok()) << published.to_string();
  }
  // Writes another manifest, with its DONE.
  void replace_manifest(std::uint64_t version, const Manifest& manifest) {
    const std::string text = manifest_to_json(manifest);
    ASSERT_TRUE(replace_text(fs_, path(version, kManifestName), text).ok());
    ASSERT_TRUE(replace_text(fs_, path(version, kDoneName), to_hex(xxh3_128(text)) + "\n").ok());
  }

  StatusCode open_code(std::uint64_t version) {
    return open_version(fs_, dir_.path(), version).status().code();
  }
  std::string path(std::uint64_t version, std::string_view name) {
    return dir_.file(version_directory_name(version)) + "/" + std::string(name);
  }

  TempDir dir_;
  FileSystem& fs_ = posix_file_system();
};

TEST_F(VersionDirTest, PublishesAndOpens) {
  publish(1);
  const auto version = open_version(fs_, dir_.path(), 1);
  ASSERT_TRUE(version.ok()) << version.status().to_string();
  EXPECT_EQ(version->base_version, 0U);
  EXPECT_EQ(version->encoding, Encoding::kXor);
  ASSERT_TRUE(version->manifest);
  EXPECT_EQ(version->manifest->files.size(), 2U);
  EXPECT_TRUE(check_file_hashes(fs_, *version, 2).ok());
}

TEST_F(VersionDirTest, FramesAreFilesLikeOthers) {
  publish_parts(1, DirectoryLayout::kFrames, frame_file_name(0, 0));
  const auto version = open_version(fs_, dir_.path(), 1);
  ASSERT_TRUE(version.ok()) << version.status().to_string();
  EXPECT_EQ(version->directory_layout, DirectoryLayout::kFrames);
  EXPECT_EQ(version->encoding, Encoding::kDeltas);
  EXPECT_EQ(version->payload_files, std::vector{frame_file_name(0, 0)});
  EXPECT_TRUE(check_has_files(*version).ok());
  EXPECT_TRUE(check_file_hashes(fs_, *version, 1).ok());

  ASSERT_TRUE(write_text(fs_, path(1, frame_file_name(0, 1)), "").ok());
  EXPECT_EQ(open_code(1), StatusCode::kCorrupt);  // added
  ASSERT_TRUE(fs_.remove_file(path(1, frame_file_name(0, 1))).ok());
  ASSERT_TRUE(fs_.remove_file(path(1, frame_file_name(0, 0))).ok());
  EXPECT_EQ(open_code(1), StatusCode::kIncomplete);  // missing
}

TEST_F(VersionDirTest, PartsOfHdf5AreNotFiles) {
  publish_parts(1, DirectoryLayout::kHdf5, kHdf5Name);
  Manifest manifest = *open_version(fs_, dir_.path(), 1)->manifest;
  manifest.files = {{frame_file_name(0, 0), 4, {1, 1}}, {frame_file_name(1, 0), 9, {2, 2}, 1, 77}};
  manifest.ranks = 2;
  replace_manifest(1, manifest);
  const auto version = open_version(fs_, dir_.path(), 1);
  ASSERT_TRUE(version.ok()) << version.status().to_string();
  EXPECT_EQ(version->payload_files, std::vector<std::string>{std::string(kHdf5Name)});
  EXPECT_EQ(*version->manifest, manifest);
  for (const Status& status : {check_has_files(*version), check_file_hashes(fs_, *version, 1)}) {
    EXPECT_EQ(status.code(), StatusCode::kUnsupported);
    EXPECT_NE(status.message().find("driftless rollout"), std::string_view::npos);
  }
  ASSERT_TRUE(fs_.remove_file(path(1, kHdf5Name)).ok());
  EXPECT_EQ(open_code(1), StatusCode::kIncomplete);
}

TEST_F(VersionDirTest, FramesAndHdf5WithoutTheirManifestAreIncomplete) {
  for (const auto& [layout, file] : {std::pair(DirectoryLayout::kFrames, frame_file_name(0, 0)),
                                     std::pair(DirectoryLayout::kHdf5, std::string(kHdf5Name))}) {
    publish_parts(1, layout, file);
    ASSERT_TRUE(fs_.remove_file(path(1, kManifestName)).ok());
    EXPECT_EQ(open_code(1), StatusCode::kIncomplete);
    ASSERT_TRUE(fs_.remove_file(path(1, kDoneName)).ok());
    EXPECT_EQ(open_code(1), StatusCode::kIncomplete);
    ASSERT_TRUE(remove_tree(fs_, dir_.file(version_directory_name(1))).ok());
  }
}

TEST_F(VersionDirTest, ListsInOrderAndPassesOverOthers) {
  publish(2);
  publish(1);
  for (const char* name :
       {"weight_v3", "weight_vabcdef", ".weight_v000009.tmp", "weight_v0000004"}) {
    std::filesystem::create_directory(dir_.file(name));
  }
  EXPECT_EQ(*list_versions(fs_, dir_.path()), (std::vector<std::uint64_t>{1, 2}));
}

TEST_F(VersionDirTest, NeverOverwrites) {
  publish(1);
  EXPECT_EQ(VersionWriter::create(fs_, dir_.path(), 1).status().code(), StatusCode::kAlreadyExists);
}

TEST_F(VersionDirTest, KeepsASecondPublisherOut) {
  const auto first = VersionWriter::create(fs_, dir_.path(), 1);
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(VersionWriter::create(fs_, dir_.path(), 2).status().code(), StatusCode::kBusy);
}

TEST_F(VersionDirTest, LeavesNothingWhereItWasNotPublished) {
  {
    const auto writer = VersionWriter::create(fs_, dir_.path(), 1);
    ASSERT_TRUE(writer.ok());
    ASSERT_TRUE(write_text(fs_, writer->file_path("x"), "x").ok());
  }
  EXPECT_FALSE(exists(fs_, dir_.file(".weight_v000001.tmp")));
  EXPECT_TRUE(list_versions(fs_, dir_.path())->empty());
}

TEST_F(VersionDirTest, IsIncompleteWithoutAnyOfItsParts) {
  for (const std::string_view name : {kDoneName, kManifestName, kIndexName,
                                      std::string_view("model-00000-of-00001.safetensors")}) {
    publish(1);
    std::filesystem::remove(path(1, name));
    EXPECT_EQ(open_code(1), StatusCode::kIncomplete) << name;
    std::filesystem::remove_all(dir_.file(version_directory_name(1)));
  }
}

TEST_F(VersionDirTest, IsIncompleteWhereOnlyTheIndexOfOursArrived) {
  publish(1);
  std::filesystem::remove(path(1, kManifestName));
  std::filesystem::remove(path(1, kDoneName));
  EXPECT_EQ(open_code(1), StatusCode::kIncomplete);
}

TEST_F(VersionDirTest, RefusesAChangedManifest) {
  publish(1);
  std::ofstream(path(1, kManifestName), std::ios::app) << " ";
  EXPECT_EQ(open_code(1), StatusCode::kCorrupt);
}

TEST_F(VersionDirTest, RefusesAFileOfAnotherSizeOrContent) {
  publish(1);
  const std::string payload = path(1, "model-00000-of-00001.safetensors");
  std::ofstream(payload) << "dat_";
  const auto version = open_version(fs_, dir_.path(), 1);
  ASSERT_TRUE(version.ok());
  EXPECT_EQ(check_file_hashes(fs_, *version, 1).code(), StatusCode::kCorrupt);
  std::ofstream(payload) << "data and more";
  EXPECT_EQ(open_code(1), StatusCode::kCorrupt);
}

TEST_F(VersionDirTest, RefusesAPayloadFileThatTheManifestDoesNotName) {
  publish(1);
  std::ofstream(path(1, "model-00001-of-00001.safetensors")) << "x";
  EXPECT_EQ(open_code(1), StatusCode::kCorrupt);
}

TEST_F(VersionDirTest, RefusesAVersionUnderAnotherNumber) {
  publish(1);
  std::filesystem::rename(dir_.file("weight_v000001"), dir_.file("weight_v000002"));
  EXPECT_EQ(open_code(2), StatusCode::kCorrupt);
}

TEST_F(VersionDirTest, RefusesLinks) {
  publish(1);
  for (const char* name : {"DONE", "manifest.json", "model.safetensors.index.json",
                           "model-00000-of-00001.safetensors"}) {
    std::filesystem::rename(path(1, name), path(1, "kept"));
    std::filesystem::create_symlink("kept", path(1, name));
    EXPECT_EQ(open_code(1), StatusCode::kInvalidArgument) << name << " leads to a file beside it";
    std::filesystem::rename(path(1, "kept"), path(1, name));
    EXPECT_EQ(open_code(1), StatusCode::kOk);
  }
  std::filesystem::rename(dir_.file("weight_v000001"), dir_.file("kept"));
  std::filesystem::create_directory_symlink("kept", dir_.file("weight_v000001"));
  EXPECT_EQ(open_code(1), StatusCode::kInvalidArgument) << "inside of the directory, too";
  std::filesystem::remove(dir_.file("weight_v000001"));
  std::filesystem::rename(dir_.file("kept"), dir_.file("weight_v000001"));
  TempDir elsewhere;
  std::filesystem::rename(dir_.file("weight_v000001"), elsewhere.file("weight_v000001"));
  std::filesystem::create_directory_symlink(elsewhere.file("weight_v000001"),
                                            dir_.file("weight_v000001"));
  EXPECT_EQ(open_code(1), StatusCode::kInvalidArgument);
}

TEST_F(VersionDirTest, NamesWhatIsThereToFind) {
  EXPECT_EQ(open_code(5), StatusCode::kNotFound);
  EXPECT_EQ(open_code(0), StatusCode::kInvalidArgument);
}

TEST_F(VersionDirTest, TakesNoFilesForIncompleteRatherThanFull) {
  std::filesystem::create_directory(dir_.file("weight_v000001"));
  EXPECT_EQ(open_code(1), StatusCode::kIncomplete);
}

TEST_F(VersionDirTest, MissesAFlushFileInTheMiddle) {
  std::filesystem::create_directory(dir_.file("weight_v000001"));
  for (const std::uint32_t flush : {0, 2}) {
    std::ofstream(path(1, flush_file_name(0, flush))) << "x";
  }
  EXPECT_EQ(open_code(1), StatusCode::kIncomplete);
}

TEST(HfDeltaIndexTest, RoundTrips) {
  HfDeltaIndex index;
  index.version = 12;
  index.base_version = 11;
  index.encoding = Encoding::kOverwrite;
  index.checksum = ChecksumKind::kAdler32;
  index.weight_map = {{"a", "f.safetensors"}, {"b", "g.safetensors"}};
  const auto parsed = parse_index(index_to_json(index), 12, "i");
  ASSERT_TRUE(parsed.ok()) << parsed.status().to_string();
  EXPECT_EQ(parsed->encoding, index.encoding);
  EXPECT_EQ(parsed->checksum, index.checksum);
  EXPECT_EQ(parsed->base_version, 11U);
  EXPECT_EQ(parsed->weight_map, index.weight_map);
  EXPECT_FALSE(parsed->ours);
}

TEST(HfDeltaIndexTest, IsFullWithoutDeltaEncoding) {
  const auto parsed =
      parse_index(R"({"metadata":{"total_size":5},"weight_map":{"a":"f"}})", 3, "i");
  ASSERT_TRUE(parsed.ok()) << parsed.status().to_string();
  EXPECT_FALSE(parsed->encoding.has_value());
}

TEST(HfDeltaIndexTest, RefusesWhatDoesNotFit) {
  const std::string good =
      R"({"metadata":{"version":"000002","base_version":"000001","delta_encoding":"xor",)"
      R"("compression_format":"zstd","checksum_format":"xxh3-128"},"weight_map":{"a":"f"}})";
  EXPECT_TRUE(parse_index(good, 2, "i").ok());
  EXPECT_EQ(parse_index(good, 3, "i").status().code(), StatusCode::kCorrupt);
  const std::pair<const char*, const char*> changes[] = {{"\"000001\"", "\"000002\""},
                                                         {"\"000002\"", "2"},
                                                         {"\"xor\"", "\"add\""},
                                                         {"\"zstd\"", "\"gzip\""},
                                                         {"\"xxh3-128\"", "\"crc\""},
                                                         {"\"f\"", "\"../f\""},
                                                         {"\"f\"", "7"},
                                                         {"{\"a\":\"f\"}", "[]"}};
  for (const auto& [from, to] : changes) {
    std::string text = good;
    text.replace(text.find(from), std::string_view(from).size(), to);
    EXPECT_FALSE(parse_index(text, 2, "i").ok()) << text;
  }
}

}  // namespace
}  // namespace driftless
