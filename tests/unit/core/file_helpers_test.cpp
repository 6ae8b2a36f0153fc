// SPDX-License-Identifier: Apache-2.0
// The functions of core/file_system.h that stand on any FileSystem.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "core/file_system.h"
#include "support/temp_dir.h"

namespace driftless {
namespace {

using testing::TempDir;

class FileHelpers : public ::testing::Test {
 protected:
  [[nodiscard]] std::string at(const std::string& name) const { return dir_.file(name); }
  [[nodiscard]] std::string content(const std::string& name) {
    const auto text = read_text(fs_, at(name), 1 << 20);
    return text.ok() ? *text : text.status().to_string();
  }

  TempDir dir_;
  FileSystem& fs_ = posix_file_system();
};

TEST(JoinPath, PutsOneSlashBetween) {
  EXPECT_EQ(join_path("a", "b"), "a/b");
  EXPECT_EQ(join_path("a/", "b"), "a/b");
  EXPECT_EQ(join_path("", "b"), "b");
  EXPECT_EQ(join_path("/", "b"), "/b");
}

TEST(CheckFileName, TakesPlainNames) {
  for (const char* name : {"a", "model-00001-of-00002.safetensors", ".hidden", "...", "a b", "ü"}) {
    EXPECT_TRUE(check_file_name(name).ok()) << name;
  }
}

TEST(CheckFileName, RefusesPathsControlCharactersAndTooLong) {
  for (const std::string& name :
       {std::string(), std::string("."), std::string(".."), std::string("a/b"), std::string("/"),
        std::string("../x"), std::string("a\0b", 3), std::string("a\nb"), std::string(256, 'a')}) {
    const Status status = check_file_name(name);
    EXPECT_EQ(status.code(), StatusCode::kCorrupt) << name;
    EXPECT_EQ(status.message().find('\n'), std::string_view::npos);
    EXPECT_EQ(status.message().find('\0'), std::string_view::npos);
  }
}

TEST_F(FileHelpers, ReadTextIsBounded) {
  ASSERT_TRUE(write_text(fs_, at("f"), "12345").ok());
  EXPECT_EQ(*read_text(fs_, at("f"), 5), "12345");
  const auto longer = read_text(fs_, at("f"), 4);
  EXPECT_EQ(longer.status().code(), StatusCode::kCorrupt);
  EXPECT_NE(longer.status().message().find(at("f")), std::string_view::npos);
  ASSERT_TRUE(write_text(fs_, at("empty"), "").ok());
  EXPECT_EQ(*read_text(fs_, at("empty"), 5), "");
  EXPECT_EQ(read_text(fs_, at("none"), 5).status().code(), StatusCode::kNotFound);
}

TEST_F(FileHelpers, WriteTextNeverOverwrites) {
  ASSERT_TRUE(write_text(fs_, at("f"), "first").ok());
  EXPECT_EQ(write_text(fs_, at("f"), "second").code(), StatusCode::kAlreadyExists);
  EXPECT_EQ(content("f"), "first");
}

TEST_F(FileHelpers, ReplaceTextReplacesAndLeavesNothingElse) {
  ASSERT_TRUE(replace_text(fs_, at("f"), "first").ok());
  ASSERT_TRUE(replace_text(fs_, at("f"), "2nd").ok());
  EXPECT_EQ(content("f"), "2nd");
  EXPECT_EQ(*fs_.list(dir_.path()), std::vector<std::string>{"f"});
}

TEST_F(FileHelpers, ReplaceTextGetsPastWhatACrashLeft) {
  ASSERT_TRUE(write_text(fs_, at("f.tmp"), "half of a long old tex").ok());
  ASSERT_TRUE(replace_text(fs_, at("f"), "new").ok());
  EXPECT_EQ(content("f"), "new");
  EXPECT_FALSE(exists(fs_, at("f.tmp")));
}

TEST_F(FileHelpers, ExistsSeesDanglingLinks) {
  EXPECT_FALSE(exists(fs_, at("x")));
  std::filesystem::create_symlink("nowhere", at("x"));
  EXPECT_TRUE(exists(fs_, at("x")));
}

TEST_F(FileHelpers, RemoveTreeRemovesAllAndFollowsNoLink) {
  std::filesystem::create_directories(at("tree/a/b"));
  std::filesystem::create_directories(at("outside"));
  ASSERT_TRUE(write_text(fs_, at("outside/keep"), "x").ok());
  ASSERT_TRUE(write_text(fs_, at("tree/a/b/f"), "x").ok());
  std::filesystem::create_directory_symlink(at("outside"), at("tree/a/link"));
  EXPECT_TRUE(remove_tree(fs_, at("tree")).ok());
  EXPECT_FALSE(exists(fs_, at("tree")));
  EXPECT_EQ(content("outside/keep"), "x");
  EXPECT_TRUE(remove_tree(fs_, at("tree")).ok());
  EXPECT_TRUE(remove_tree(fs_, at("outside/keep")).ok());
}

TEST_F(FileHelpers, CheckInsideTakesFilesAndLinksThatStay) {
  std::filesystem::create_directories(at("ckpt/blobs"));
  ASSERT_TRUE(write_text(fs_, at("ckpt/f"), "x").ok());
  ASSERT_TRUE(write_text(fs_, at("ckpt/blobs/1"), "x").ok());
  std::filesystem::create_symlink("blobs/1", at("ckpt/link"));
  EXPECT_TRUE(check_inside(fs_, at("ckpt"), "f").ok());
  EXPECT_TRUE(check_inside(fs_, at("ckpt"), "link").ok());
  EXPECT_TRUE(check_inside(fs_, at("ckpt/blobs/.."), "link").ok());
  EXPECT_EQ(check_inside(fs_, at("ckpt"), "none").code(), StatusCode::kNotFound);
}

TEST_F(FileHelpers, CheckInsideRefusesLinksThatLeave) {
  std::filesystem::create_directories(at("ckpt"));
  std::filesystem::create_directories(at("ckpt2"));  // has the first one's name as its beginning
  ASSERT_TRUE(write_text(fs_, at("ckpt2/f"), "x").ok());
  std::filesystem::create_symlink("../ckpt2/f", at("ckpt/sibling"));
  std::filesystem::create_symlink(at("ckpt2/f"), at("ckpt/absolute"));
  std::filesystem::create_symlink("absolute", at("ckpt/twice"));
  std::filesystem::create_symlink(".", at("ckpt/itself"));
  std::filesystem::create_symlink("nowhere", at("ckpt/dangling"));
  for (const char* name : {"sibling", "absolute", "twice", "itself"}) {
    const Status status = check_inside(fs_, at("ckpt"), name);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << name;
    EXPECT_NE(status.message().find(name), std::string_view::npos);
  }
  EXPECT_EQ(check_inside(fs_, at("ckpt"), "dangling").code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace driftless
