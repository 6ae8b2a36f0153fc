// SPDX-License-Identifier: Apache-2.0
// What `driftless doctor` finds on file systems that break a promise.
#include <gtest/gtest.h>

#include "collectives/shared_fs/shared_fs_road.h"
#include "support/faulty_file_system.h"
#include "support/stalling_file_system.h"
#include "support/temp_dir.h"

namespace driftless {
namespace {

using enum FindingState;
using testing::Fault;
using testing::FaultyFileSystem;
using testing::StallingFileSystem;
using testing::TempDir;

class SharedFsExamineTest : public ::testing::Test {
 protected:
  std::vector<Finding> examine(FileSystem& fs, std::uint64_t space_bytes = 0,
                               std::chrono::milliseconds wait = std::chrono::minutes(1)) {
    SharedFsOptions options;
    options.dir = directory_.path();
    return examine_shared_fs(fs, options, space_bytes, Deadline::after(wait));
  }
  [[nodiscard]] bool empty() const {
    const auto names = posix_file_system().list(directory_.path());
    return names.ok() && names->empty();
  }
  static FindingState state_of(const std::vector<Finding>& findings, std::string_view check) {
    const auto at = std::ranges::find(findings, check, &Finding::check);
    return at == findings.end() ? kSkip : at->state;
  }

  TempDir directory_, stash_;
};

TEST_F(SharedFsExamineTest, AnyCallThatFailsIsFoundAndNothingStays) {
  FaultyFileSystem counting(Fault::kNone, 0, stash_.path());
  for (const Finding& finding : examine(counting)) EXPECT_NE(finding.state, kFail) << finding.check;
  EXPECT_TRUE(empty());
  constexpr std::uint64_t kCleanUp = 5;  // calls: a file, a lock, two directories, their parent
  ASSERT_GT(counting.calls(), kCleanUp);
  for (std::uint64_t call = 0; call + kCleanUp < counting.calls(); ++call) {
    for (const Fault fault : {Fault::kEio, Fault::kEnospc}) {
      FaultyFileSystem fs(fault, call, stash_.path());
      const std::vector<Finding> findings = examine(fs);
      const auto failed = std::ranges::count(findings, kFail, &Finding::state);
      EXPECT_EQ(failed, 1) << "call " << call;
      EXPECT_TRUE(empty()) << "call " << call;
    }
  }
}

TEST_F(SharedFsExamineTest, AFileSystemThatIsTooSlowIsReportedAndLeftEmpty) {
  const auto findings = examine(posix_file_system(), 0, std::chrono::milliseconds(0));
  EXPECT_EQ(state_of(findings, "deadline"), kFail);
  EXPECT_EQ(state_of(findings, "lock"), kSkip) << "it was not tried";
  EXPECT_TRUE(empty());
}

class LaxFileSystem final : public StallingFileSystem {
 public:
  Result<std::unique_ptr<File>> create(const std::string& path) override {
    Result<std::unique_ptr<File>> made = StallingFileSystem::create(path);
    return no_excl && made.status().code() == StatusCode::kAlreadyExists ? open(path)
                                                                         : std::move(made);
  }
  Status rename_new(const std::string& from, const std::string& to) override {
    const Status renamed = StallingFileSystem::rename_new(from, to);
    return replaces && renamed.code() == StatusCode::kAlreadyExists ? Status() : renamed;
  }
  Result<std::unique_ptr<FileLock>> lock(const std::string& path,
                                         std::chrono::milliseconds wait) override {
    if (no_locks) return error(StatusCode::kIo, path, ": No locks available");
    return StallingFileSystem::lock(lax_locks ? concat(path, ++locks_) : path, wait);
  }
  Result<FileInfo> info(const std::string& path) override {
    Result<FileInfo> info = StallingFileSystem::info(path);
    if (info.ok()) info->modified_ns += skew_s * 1'000'000'000;
    return info;
  }

  bool no_excl = false, replaces = false, no_locks = false, lax_locks = false;
  std::int64_t skew_s = 0;

 private:
  int locks_ = 0;
};

TEST_F(SharedFsExamineTest, PromisesThatAreNotKeptAreFound) {
  const auto look = [&](const char* check, auto&& spoil) {
    LaxFileSystem fs;
    spoil(fs);
    return state_of(examine(fs), check);
  };
  EXPECT_EQ(look("exclusive create", [](auto& fs) { fs.no_excl = true; }), kFail);
  EXPECT_EQ(look("rename", [](auto& fs) { fs.replaces = true; }), kFail);
  EXPECT_EQ(look("lock", [](auto& fs) { fs.no_locks = true; }), kFail);
  EXPECT_EQ(look("lock", [](auto& fs) { fs.lax_locks = true; }), kFail);
  EXPECT_EQ(look("clock", [](auto& fs) { fs.skew_s = -60; }), kWarn);
  EXPECT_EQ(look("clock", [](auto& fs) { fs.skew_s = 3600; }), kWarn);
  constexpr std::uint64_t kFirstSync = 4;
  EXPECT_EQ(look("fsync", [](auto& fs) { fs.plan(kFirstSync, std::chrono::milliseconds(250)); }),
            kWarn);
}

TEST_F(SharedFsExamineTest, SpaceIsComparedWithWhatIsNeeded) {
  LaxFileSystem fs;
  EXPECT_EQ(state_of(examine(fs, std::uint64_t{1} << 60), "space"), kFail);
  EXPECT_EQ(state_of(examine(fs, 1), "space"), kOk);
}

}  // namespace
}  // namespace driftless
