// SPDX-License-Identifier: Apache-2.0
#include "formats/checkpoint.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "support/safetensors_bytes.h"
#include "support/stalling_file_system.h"
#include "support/temp_dir.h"

namespace driftless {
namespace {

using testing::entry;
using testing::file_of;
using testing::object;

// A file of U8 tensors, each of two bytes.
std::string shard(std::initializer_list<std::string> names) {
  std::string header = "{";
  int at = 0;
  for (const std::string& name : names) {
    if (at > 0) header += ',';
    header += entry(name, "U8", "[2]", concat('[', at, ',', at + 2, ']'));
    at += 2;
  }
  return file_of(header + "}", static_cast<std::uint64_t>(at));
}

class CheckpointTest : public ::testing::Test {
 protected:
  void write(const std::string& name, const std::string& content) {
    std::ofstream(dir_.file(name), std::ios::binary) << content;
  }
  void write_index(const std::string& weight_map) {
    write("model.safetensors.index.json",
          concat(R"({"metadata":{"total_size":6},"weight_map":)", weight_map, "}"));
  }
  // Tensors b, d in one file, a, c in the other.
  void write_sharded() {
    write("model-00001-of-00002.safetensors", shard({"d", "b"}));
    write("model-00002-of-00002.safetensors", shard({"a", "c"}));
    write_index(
        R"({"a":"model-00002-of-00002.safetensors","b":"model-00001-of-00002.safetensors",)"
        R"("c":"model-00002-of-00002.safetensors","d":"model-00001-of-00002.safetensors"})");
  }
  Result<Checkpoint> open() { return Checkpoint::open(posix_file_system(), dir_.path()); }
  void expect_refused(StatusCode code, std::initializer_list<std::string_view> in_message) {
    const Result<Checkpoint> opened = open();
    ASSERT_FALSE(opened.ok());
    const Status& status = opened.status();
    EXPECT_EQ(status.code(), code) << status.to_string();
    EXPECT_NE(status.message().find(dir_.path()), std::string_view::npos) << status.to_string();
    EXPECT_EQ(status.message().find('\n'), std::string_view::npos) << status.to_string();
    for (const std::string_view part : in_message) {
      EXPECT_NE(status.message().find(part), std::string_view::npos) << status.to_string();
    }
  }

  testing::TempDir dir_;
};

std::string text(const TensorView& view) {
  return {reinterpret_cast<const char*>(view.data), view.spec->size_bytes};
}

TEST_F(CheckpointTest, OpensShardsByTheIndex) {
  write_sharded();
  write("other.safetensors", "not named by the index, so nobody's business");
  const Result<Checkpoint> opened = open();
  ASSERT_TRUE(opened.ok()) << opened.status().to_string();
  EXPECT_EQ(opened->path(), dir_.path());
  EXPECT_EQ(opened->files().size(), 2U);
  ASSERT_EQ(opened->layout().size(), 4U);
  EXPECT_EQ(opened->layout()[0].name, "a");
  EXPECT_EQ(text(opened->tensor(0)), "ab");
  EXPECT_EQ(text(opened->tensor(1)), "cd");  // b is second in its file
  EXPECT_EQ(text(opened->tensor(2)), "cd");
  EXPECT_EQ(text(opened->tensor(3)), "ab");
  EXPECT_EQ(opened->location(0).file, 1U);
  EXPECT_EQ(opened->location(3).file, 0U);
  EXPECT_EQ(opened->location(1).file_offset, opened->location(3).file_offset + 2);
  opened->forget(0, 0, 2);
  EXPECT_EQ(text(opened->tensor(0)), "ab");
}

TEST_F(CheckpointTest, OpensADirectoryWithOneFileAndTheFileItself) {
  write("model.safetensors", shard({"w"}));
  write(".hidden.safetensors", "x");
  write("config.json", "{}");
  const Result<Checkpoint> directory = open();
  ASSERT_TRUE(directory.ok()) << directory.status().to_string();
  EXPECT_EQ(text(directory->tensor(0)), "ab");
  const Result<Checkpoint> file =
      Checkpoint::open(posix_file_system(), dir_.file("model.safetensors"));
  ASSERT_TRUE(file.ok()) << file.status().to_string();
  EXPECT_EQ(file->layout().signature(), directory->layout().signature());
}

TEST_F(CheckpointTest, FollowsASymbolicLinkThatTheCallerNames) {
  write("model.safetensors", shard({"w"}));
  const testing::TempDir other;
  std::filesystem::create_symlink(dir_.path(), other.file("directory"));
  std::filesystem::create_symlink(dir_.file("model.safetensors"), other.file("file.safetensors"));
  EXPECT_TRUE(Checkpoint::open(posix_file_system(), other.file("directory")).ok());
  EXPECT_TRUE(Checkpoint::open(posix_file_system(), other.file("file.safetensors")).ok());
}

TEST_F(CheckpointTest, ReportsAMissingCheckpoint) {
  const Status status = Checkpoint::open(posix_file_system(), dir_.file("none")).status();
  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_NE(status.message().find("/none"), std::string_view::npos);
  expect_refused(StatusCode::kNotFound, {"no model.safetensors.index.json", "*.safetensors"});
  write("pytorch_model.bin", "x");
  expect_refused(StatusCode::kNotFound, {"no model.safetensors.index.json", "*.safetensors"});
}

TEST_F(CheckpointTest, RefusesSeveralFilesWithoutAnIndex) {
  for (const std::string name : {"a", "b", "c", "d", "e"}) {
    write(name + ".safetensors", shard({name}));
  }
  expect_refused(StatusCode::kIncomplete,
                 {"5 safetensors files", "'a.safetensors'", "and 2 more", "index.json", "add it"});
}

TEST_F(CheckpointTest, NamesTheMissingShardAndATensorOfIt) {
  write_sharded();
  std::filesystem::remove(dir_.file("model-00002-of-00002.safetensors"));
  expect_refused(StatusCode::kNotFound, {"model-00002-of-00002.safetensors: is missing", "'a'"});
}

TEST_F(CheckpointTest, RefusesATensorThatItsShardLacks) {
  write_sharded();
  write("model-00002-of-00002.safetensors", shard({"a"}));
  expect_refused(StatusCode::kCorrupt,
                 {"model-00002-of-00002.safetensors", "'c' is not in this file"});
}

TEST_F(CheckpointTest, RefusesATensorThatTheIndexLacks) {
  write_sharded();
  write("model-00002-of-00002.safetensors", shard({"a", "c", "extra"}));
  expect_refused(StatusCode::kCorrupt,
                 {"model-00002-of-00002.safetensors", "'extra'", "not in the weight_map"});
}

TEST_F(CheckpointTest, RefusesATensorInTwoShards) {
  write_sharded();
  write("model-00001-of-00002.safetensors", shard({"d", "b", "c"}));
  expect_refused(StatusCode::kCorrupt, {"model-00001-of-00002.safetensors", "'c'",
                                        "assigns it to 'model-00002-of-00002.safetensors'"});
}

TEST_F(CheckpointTest, RefusesADamagedShardNamingIt) {
  write_sharded();
  std::filesystem::resize_file(dir_.file("model-00002-of-00002.safetensors"), 20);
  expect_refused(StatusCode::kCorrupt, {"model-00002-of-00002.safetensors"});
}

TEST_F(CheckpointTest, RefusesFileNamesThatLeaveTheDirectory) {
  for (const std::string name : {"../x.safetensors", "/etc/passwd", "sub/x.safetensors", "..", ".",
                                 "", "a\\u0000.safetensors", "a\\n.safetensors"}) {
    write_index(concat(R"({"w":")", name, "\"}"));
    expect_refused(StatusCode::kCorrupt, {"'w'", "not a plain file name"});
  }
}

TEST_F(CheckpointTest, RefusesSymbolicLinksThatLeadOut) {
  const testing::TempDir other;
  std::ofstream(other.file("m.safetensors"), std::ios::binary) << shard({"w"});
  std::filesystem::create_symlink(other.file("m.safetensors"), dir_.file("m.safetensors"));
  expect_refused(StatusCode::kInvalidArgument, {"m.safetensors", "leads out"});
  write_index(R"({"w":"m.safetensors"})");
  expect_refused(StatusCode::kInvalidArgument, {"m.safetensors", "leads out"});
  std::filesystem::remove(dir_.file("m.safetensors"));
  std::filesystem::create_symlink("nowhere", dir_.file("m.safetensors"));
  expect_refused(StatusCode::kNotFound, {"m.safetensors", "'w'"});
  // One that stays inside is as good as the file.
  std::filesystem::remove(dir_.file("m.safetensors"));
  write("real", shard({"w"}));
  std::filesystem::create_symlink("real", dir_.file("m.safetensors"));
  EXPECT_TRUE(open().ok());
}

// A snapshot in the cache of a model hub: its directory, whose one file leads to `blob`.
struct HubSnapshot {
  explicit HubSnapshot(const testing::TempDir& cache)
      : repository(cache.file("models--org--name")),
        directory(repository + "/snapshots/0123"),
        blob(repository + "/blobs/4567") {
    std::filesystem::create_directories(directory);
    std::filesystem::create_directories(repository + "/blobs");
    put_blob();
    std::filesystem::create_symlink("../../blobs/4567", directory + "/model.safetensors");
  }
  void put_blob() const {
    std::filesystem::remove(blob);
    std::ofstream(blob, std::ios::binary) << shard({"w"});
  }
  std::string repository, directory, blob;
};

TEST_F(CheckpointTest, FollowsLinksOfASnapshotToItsBlobs) {
  const HubSnapshot snapshot(dir_);
  const Result<Checkpoint> opened = Checkpoint::open(posix_file_system(), snapshot.directory);
  ASSERT_TRUE(opened.ok()) << opened.status().to_string();
  EXPECT_EQ(text(opened->tensor(0)), "ab");
  EXPECT_TRUE(opened->linked());
  EXPECT_EQ(opened->file_name(0), "model.safetensors");
  const testing::TempDir other;
  std::filesystem::create_symlink(snapshot.directory, other.file("current"));
  EXPECT_TRUE(Checkpoint::open(posix_file_system(), other.file("current")).ok());
}

// Whatever is replaced by whatever link between two calls: nothing but a blob is ever read.
TEST_F(CheckpointTest, NeverReadsWhatALinkThatAppearsMeanwhileLeadsTo) {
  const HubSnapshot snapshot(dir_);
  const testing::TempDir other;
  std::ofstream(other.file("secret"), std::ios::binary) << shard({"secret"});
  testing::StallingFileSystem fs;
  for (const std::string& replaced : {snapshot.blob, snapshot.directory + "/model.safetensors"}) {
    bool opened = true;
    for (std::uint64_t at = 0; at < 8; ++at) {
      snapshot.put_blob();
      std::filesystem::remove(snapshot.directory + "/model.safetensors");
      std::filesystem::create_symlink("../../blobs/4567",
                                      snapshot.directory + "/model.safetensors");
      fs.plan(at, [&] {
        std::filesystem::remove(replaced);
        std::filesystem::create_symlink(other.file("secret"), replaced);
      });
      const Result<Checkpoint> found = Checkpoint::open(fs, snapshot.directory);
      opened = found.ok();
      if (!opened) continue;
      EXPECT_EQ(found->layout()[0].name, "w") << replaced << ", call " << at;
    }
    EXPECT_TRUE(opened) << "the last call comes after all";
  }
}

TEST_F(CheckpointTest, RefusesAnIndexThatIsALinkOut) {
  write_sharded();
  const testing::TempDir other;
  const std::string index = dir_.file("model.safetensors.index.json");
  std::filesystem::rename(index, other.file("i.json"));
  std::filesystem::create_symlink(other.file("i.json"), index);
  expect_refused(StatusCode::kInvalidArgument, {"index.json", "leads out"});
}

TEST_F(CheckpointTest, RefusesAnIndexOfAnotherForm) {
  for (const auto& [index, message] : std::initializer_list<std::pair<std::string, std::string>>{
           {"", "JSON"},
           {"[]", "weight_map"},
           {"{}", "'weight_map' is missing"},
           {R"({"weight_map":[]})", "'weight_map' must be"},
           {R"({"weight_map":{"w":1}})", "'w' must be a string"},
           {R"({"weight_map":{"w":null}})", "'w' must be a string"},
           {R"({"weight_map":{"":"m.safetensors"}})", "empty"},
           {R"({"weight_map":{"a\u0001":"m.safetensors"}})", "control"},
           {R"({"weight_map":{"w":"a","w":"a"}})", "'w' twice"},
           {R"({"weight_map":{},"weight_map":{}})", "'weight_map' twice"},
           {R"({"weight_map":{},"metadata":[]})", "'metadata' must be"},
           {"{\"weight_map\":{\"w\xff\":\"a\"}}", "UTF-8"},
           {R"({"weight_map":{}} x)", "JSON"}}) {
    write("model.safetensors.index.json", index);
    expect_refused(StatusCode::kCorrupt, {"model.safetensors.index.json", message});
  }
}

TEST_F(CheckpointTest, RefusesAnOversizedIndexWithoutReadingIt) {
  write("model.safetensors.index.json", "{}");
  std::filesystem::resize_file(dir_.file("model.safetensors.index.json"),
                               kMaxCheckpointIndexBytes + 1);
  expect_refused(StatusCode::kCorrupt, {"index.json", "100000001"});
}

TEST_F(CheckpointTest, RefusesADirectoryInPlaceOfAFile) {
  std::filesystem::create_directory(dir_.file("m.safetensors"));
  write_index(R"({"w":"m.safetensors"})");
  expect_refused(StatusCode::kInvalidArgument, {"m.safetensors", "not a regular file"});
}

TEST_F(CheckpointTest, TakesAnIndexWithoutTensors) {
  write_index("{}");
  const Result<Checkpoint> opened = open();
  ASSERT_TRUE(opened.ok()) << opened.status().to_string();
  EXPECT_EQ(opened->layout().size(), 0U);
}

TEST(CheckpointIndex, IgnoresWhatItDoesNotKnow) {
  const Result<TensorFiles> index = parse_checkpoint_index(
      R"({"metadata":{"version":"000007","total_size":5,"x":{}},"weight_map":{"b":"f","a":"g"},"y":1})",
      "i");
  ASSERT_TRUE(index.ok()) << index.status().to_string();
  EXPECT_EQ(*index, (std::map<std::string, std::string>{{"a", "g"}, {"b", "f"}}));
}

TEST(CheckpointIndex, RefusesTruncationAtEveryByte) {
  const std::string whole = R"({"metadata":{"total_size":5},"weight_map":{"b":"f","a":"g"}})";
  ASSERT_TRUE(parse_checkpoint_index(whole, "i").ok());
  for (std::size_t cut = 0; cut < whole.size(); ++cut) {
    EXPECT_FALSE(parse_checkpoint_index(whole.substr(0, cut), "i").ok()) << cut;
  }
}

}  // namespace
}  // namespace driftless
