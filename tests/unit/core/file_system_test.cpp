// SPDX-License-Identifier: Apache-2.0
// posix_file_system() against the contract of FileSystem.
#include "core/file_system.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "support/temp_dir.h"

namespace driftless {
namespace {

using testing::TempDir;

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

class PosixFileSystemTest : public ::testing::Test {
 protected:
  [[nodiscard]] std::string at(const std::string& name) const { return dir_.file(name); }
  void make_file(const std::string& name, std::string_view text) {
    const Status status = write_text(fs_, at(name), text);
    ASSERT_TRUE(status.ok()) << status.to_string();
  }
  [[nodiscard]] std::string content(const std::string& name) {
    const auto text = read_text(fs_, at(name), 1 << 20);
    return text.ok() ? *text : text.status().to_string();
  }

  TempDir dir_;
  FileSystem& fs_ = posix_file_system();
};

TEST_F(PosixFileSystemTest, CreateMakesANewFileAndNeverOverwrites) {
  {
    auto file = fs_.create(at("f"));
    ASSERT_TRUE(file.ok());
    EXPECT_EQ((*file)->path(), at("f"));
    EXPECT_TRUE((*file)->pwrite(3, bytes_of("xyz")).ok());
    EXPECT_TRUE((*file)->pwrite(0, bytes_of("abc")).ok());
    EXPECT_TRUE((*file)->sync().ok());
  }
  EXPECT_EQ(content("f"), "abcxyz");
  EXPECT_EQ(fs_.create(at("f")).status().code(), StatusCode::kAlreadyExists);
  EXPECT_EQ(content("f"), "abcxyz");
  std::filesystem::create_symlink("nowhere", at("link"));
  EXPECT_EQ(fs_.create(at("link")).status().code(), StatusCode::kAlreadyExists);
  EXPECT_EQ(fs_.create(at("no/f")).status().code(), StatusCode::kNotFound);
}

TEST_F(PosixFileSystemTest, OpenReadsAndWritesInPlace) {
  make_file("f", "hello");
  auto file = fs_.open(at("f"));
  ASSERT_TRUE(file.ok());
  EXPECT_TRUE((*file)->pwrite(1, bytes_of("a")).ok());
  std::array<std::byte, 3> got{};
  EXPECT_TRUE((*file)->pread(0, got).ok());
  EXPECT_EQ(std::memcmp(got.data(), "hal", 3), 0);
  EXPECT_EQ(content("f"), "hallo");
}

TEST_F(PosixFileSystemTest, OpenTakesExistingRegularFilesOnly) {
  EXPECT_EQ(fs_.open(at("f")).status().code(), StatusCode::kNotFound);
  EXPECT_FALSE(exists(fs_, at("f")));
  make_file("f", "x");
  std::filesystem::create_symlink("f", at("link"));
  EXPECT_FALSE(fs_.open(at("link")).ok());
  EXPECT_FALSE(fs_.open(dir_.path()).ok());
  ASSERT_EQ(::mkfifo(at("fifo").c_str(), 0600), 0);
  EXPECT_EQ(fs_.open(at("fifo")).status().code(), StatusCode::kInvalidArgument);
}

TEST_F(PosixFileSystemTest, ReadingPastTheEndIsCorruptAndNamesTheOffset) {
  make_file("f", "hello");
  auto file = fs_.open(at("f"));
  ASSERT_TRUE(file.ok());
  std::array<std::byte, 4> got{};
  const Status status = (*file)->pread(3, got);
  EXPECT_EQ(status.code(), StatusCode::kCorrupt);
  EXPECT_NE(status.message().find("byte 5"), std::string_view::npos) << status.message();
  EXPECT_TRUE((*file)->pread(100, {}).ok());
}

TEST_F(PosixFileSystemTest, InfoDistinguishesKindsWithoutFollowingLinks) {
  make_file("f", "12345");
  ASSERT_TRUE(fs_.make_directory(at("d")).ok());
  std::filesystem::create_symlink("f", at("link"));
  std::filesystem::create_hard_link(at("f"), at("f2"));
  ASSERT_EQ(::mkfifo(at("fifo").c_str(), 0600), 0);
  const auto file = fs_.info(at("f"));
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(file->kind, FileKind::kFile);
  EXPECT_EQ(file->size_bytes, 5U);
  EXPECT_EQ(file->hard_links, 2U);
  EXPECT_EQ(fs_.info(at("d"))->kind, FileKind::kDirectory);
  EXPECT_EQ(fs_.info(at("link"))->kind, FileKind::kSymlink);
  EXPECT_EQ(fs_.info(at("fifo"))->kind, FileKind::kOther);
  EXPECT_EQ(fs_.info(at("none")).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(fs_.info(at("f/below")).status().code(), StatusCode::kNotFound);
}

TEST_F(PosixFileSystemTest, ListIsSortedAndComplete) {
  make_file("b", "");
  make_file("a", "");
  make_file(".hidden", "");
  ASSERT_TRUE(fs_.make_directory(at("c")).ok());
  const auto names = fs_.list(dir_.path());
  ASSERT_TRUE(names.ok());
  EXPECT_EQ(*names, (std::vector<std::string>{".hidden", "a", "b", "c"}));
  EXPECT_EQ(fs_.list(at("none")).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(fs_.list(at("a")).status().code(), StatusCode::kNotFound);
}

TEST_F(PosixFileSystemTest, MakeDirectoryRefusesWhatExists) {
  EXPECT_TRUE(fs_.make_directory(at("d")).ok());
  EXPECT_EQ(fs_.make_directory(at("d")).code(), StatusCode::kAlreadyExists);
  EXPECT_EQ(fs_.make_directory(at("x/y")).code(), StatusCode::kNotFound);
}

TEST_F(PosixFileSystemTest, RenameFileReplaces) {
  make_file("a", "new");
  make_file("b", "old");
  EXPECT_TRUE(fs_.rename_file(at("a"), at("b")).ok());
  EXPECT_EQ(content("b"), "new");
  EXPECT_FALSE(exists(fs_, at("a")));
  EXPECT_EQ(fs_.rename_file(at("a"), at("b")).code(), StatusCode::kNotFound);
}

TEST_F(PosixFileSystemTest, RenameDirectoryNeverReplacesNotEvenAnEmptyOne) {
  ASSERT_TRUE(fs_.make_directory(at("from")).ok());
  ASSERT_TRUE(fs_.make_directory(at("empty")).ok());
  make_file("file", "x");
  EXPECT_EQ(fs_.rename_new(at("from"), at("empty")).code(), StatusCode::kAlreadyExists);
  EXPECT_EQ(fs_.rename_new(at("from"), at("file")).code(), StatusCode::kAlreadyExists);
  EXPECT_TRUE(exists(fs_, at("from")));
  EXPECT_TRUE(fs_.rename_new(at("from"), at("to")).ok());
  EXPECT_FALSE(exists(fs_, at("from")));
  EXPECT_EQ(fs_.info(at("to"))->kind, FileKind::kDirectory);
  EXPECT_EQ(fs_.rename_new(at("from"), at("to2")).code(), StatusCode::kNotFound);
}

TEST_F(PosixFileSystemTest, RemoveAndSyncDirectory) {
  ASSERT_TRUE(fs_.make_directory(at("d")).ok());
  make_file("d/f", "x");
  EXPECT_TRUE(fs_.sync_directory(at("d")).ok());
  EXPECT_EQ(fs_.sync_directory(at("none")).code(), StatusCode::kNotFound);
  EXPECT_EQ(fs_.remove_directory(at("d")).code(), StatusCode::kAlreadyExists);
  EXPECT_TRUE(fs_.remove_file(at("d/f")).ok());
  EXPECT_EQ(fs_.remove_file(at("d/f")).code(), StatusCode::kNotFound);
  EXPECT_TRUE(fs_.remove_directory(at("d")).ok());
}

TEST_F(PosixFileSystemTest, MapShowsTheContent) {
  make_file("f", "mapped");
  auto mapped = fs_.map(at("f"));
  ASSERT_TRUE(mapped.ok());
  EXPECT_EQ(mapped->path(), at("f"));
  ASSERT_EQ(mapped->bytes().size(), 6U);
  EXPECT_EQ(std::memcmp(mapped->bytes().data(), "mapped", 6), 0);
}

TEST_F(PosixFileSystemTest, MapTakesRegularFilesOnlyAndDoesNotHang) {
  make_file("empty", "");
  const auto empty = fs_.map(at("empty"));
  ASSERT_TRUE(empty.ok());
  EXPECT_TRUE(empty->bytes().empty());
  EXPECT_EQ(fs_.map(dir_.path()).status().code(), StatusCode::kInvalidArgument);
  ASSERT_EQ(::mkfifo(at("fifo").c_str(), 0600), 0);
  EXPECT_EQ(fs_.map(at("fifo")).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(fs_.map(at("none")).status().code(), StatusCode::kNotFound);
}

TEST_F(PosixFileSystemTest, AMappingOutlivesMovesAndTheName) {
  make_file("f", "mapped");
  make_file("g", "other");
  auto first = fs_.map(at("f"));
  auto second = fs_.map(at("g"));
  ASSERT_TRUE(first.ok() && second.ok());
  MappedFile moved = std::move(*first);
  *second = std::move(moved);
  ASSERT_TRUE(fs_.remove_file(at("f")).ok());
  EXPECT_EQ(second->path(), at("f"));
  EXPECT_EQ(std::memcmp(second->bytes().data(), "mapped", 6), 0);
}

TEST_F(PosixFileSystemTest, HeldContentLivesAsLongAsItsFile) {
  auto owner = std::make_shared<std::string>(300'000, 'h');
  const std::weak_ptr<std::string> watch = owner;
  const auto bytes = std::as_bytes(std::span(owner->data(), owner->size()));
  MappedFile held("part", std::move(owner), bytes);
  EXPECT_EQ(held.path(), "part");
  held.forget(0, bytes.size());  // nothing: the bytes are nobody's mapping
  EXPECT_EQ(std::ranges::count(held.bytes(), std::byte{'h'}), 300'000);
  {
    make_file("f", "mapped");
    auto mapped = fs_.map(at("f"));
    ASSERT_TRUE(mapped.ok());
    MappedFile moved(std::move(held));
    EXPECT_TRUE(held.bytes().empty());
    std::swap(moved, *mapped);  // each takes its own kind of ownership along
    EXPECT_EQ(std::memcmp(moved.bytes().data(), "mapped", 6), 0);
    EXPECT_EQ(mapped->bytes().data(), bytes.data());
    EXPECT_FALSE(watch.expired());
  }
  EXPECT_TRUE(watch.expired());
  const MappedFile unowned("static", nullptr, std::as_bytes(std::span("text", 4)));
  EXPECT_EQ(unowned.bytes().size(), 4U);
}

TEST_F(PosixFileSystemTest, ForgettingAMappingKeepsItsContent) {
  std::string text(300'000, 'a');
  text += "end";
  make_file("f", text);
  const auto mapped = fs_.map(at("f"));
  ASSERT_TRUE(mapped.ok());
  mapped->forget(0, mapped->bytes().size());
  mapped->forget(1, 1);
  mapped->forget(200'000, 1'000'000);
  EXPECT_EQ(std::memcmp(mapped->bytes().data(), text.data(), text.size()), 0);
  MappedFile().forget(0, 100);
}

TEST_F(PosixFileSystemTest, ALockIsHeldByOneHandleAtATime) {
  using std::chrono::milliseconds;
  auto first = fs_.lock(at("lock"), milliseconds(0));
  ASSERT_TRUE(first.ok());
  const auto start = std::chrono::steady_clock::now();
  const auto second = fs_.lock(at("lock"), milliseconds(60));
  EXPECT_EQ(second.status().code(), StatusCode::kBusy);
  EXPECT_GE(std::chrono::steady_clock::now() - start, milliseconds(60));
  first->reset();
  EXPECT_TRUE(fs_.lock(at("lock"), milliseconds(0)).ok());
}

TEST_F(PosixFileSystemTest, ALockFileThatIsALinkIsRefused) {
  make_file("victim", "x");
  std::filesystem::create_symlink("victim", at("lock"));
  EXPECT_FALSE(fs_.lock(at("lock"), std::chrono::milliseconds(0)).ok());
}

// A child takes the lock and is killed: the lock must be free at once, whatever it left behind.
TEST_F(PosixFileSystemTest, ALockIsFreedWhenItsProcessIsKilled) {
  using std::chrono::milliseconds;
  std::array<int, 2> ready{};
  ASSERT_EQ(::pipe(ready.data()), 0);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const auto lock = fs_.lock(at("lock"), milliseconds(0));
    const char answer = lock.ok() ? 'y' : 'n';
    if (::write(ready[1], &answer, 1) == 1) ::pause();
    ::_exit(1);
  }
  char answer = 'n';
  EXPECT_EQ(::read(ready[0], &answer, 1), 1);
  EXPECT_EQ(answer, 'y');
  EXPECT_EQ(fs_.lock(at("lock"), milliseconds(30)).status().code(), StatusCode::kBusy);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_TRUE(fs_.lock(at("lock"), milliseconds(1000)).ok());
  ::close(ready[0]);
  ::close(ready[1]);
}

}  // namespace
}  // namespace driftless
