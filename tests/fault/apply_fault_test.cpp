// SPDX-License-Identifier: Apache-2.0
// Applying under faults: whatever fails, and whenever the machine stops, the next apply reaches
// exactly the new version. Until then the weights are the old ones, or a journal shows that they
// are not.
#include <gtest/gtest.h>

#include <array>

#include "plugin/checkpoint/checkpoint_patcher.h"
#include "plugin/checkpoint/delta_writer.h"
#include "support/faulty_file_system.h"
#include "support/temp_dir.h"
#include "support/weights.h"

namespace driftless::testing {
namespace {

struct ApplyCase {
  DirectoryLayout layout;
  Encoding encoding;
};

class ApplyFaultTest : public ::testing::TestWithParam<ApplyCase> {
 protected:
  void SetUp() override {
    before_ = random_weights(1);
    after_ = changed_weights(before_, 2, 0.02);
    write_checkpoint(base_, before_, 2);
    write_checkpoint(dir_.file("new"), after_, 2);
    DeltaOptions delta;
    delta.old_checkpoint = base_;
    delta.new_checkpoint = dir_.file("new");
    delta.directory = published_;
    delta.directory_layout = GetParam().layout;
    delta.encoding = GetParam().encoding;
    const auto done = write_delta(posix_file_system(), delta);
    ASSERT_TRUE(done.ok()) << done.status().to_string();
  }

  Result<ApplyReport> apply(FileSystem& fs) {
    ApplyOptions options;
    options.threads = 1;  // one order of calls, so that a call's number names it
    return apply_versions(fs, published_, copy_, std::nullopt, options);
  }

  // One apply that fails at call `at`, then one that must succeed. Returns whether the fault
  // occurred.
  bool play(Fault fault, std::uint64_t at, double keep) {
    copy_directory(base_, copy_);
    std::filesystem::remove_all(stash_);
    std::filesystem::create_directory(stash_);
    FaultyFileSystem faulty(fault, at, stash_);
    const auto first = apply(faulty);
    const bool met = faulty.calls() > at;
    if (met && faulty.crashed()) faulty.lose_unsynced(keep, at);
    EXPECT_TRUE(!met || !first.ok() || holds(copy_, after_));
    const bool journal = exists(posix_file_system(), copy_ + "/.weight_sync/journal");
    EXPECT_TRUE(journal || holds(copy_, before_) || holds(copy_, after_))
        << "between two versions without a journal, call " << at;
    const auto second = apply(posix_file_system());
    EXPECT_TRUE(second.ok()) << second.status().to_string() << ", call " << at;
    EXPECT_TRUE(holds(copy_, after_)) << "call " << at;
    EXPECT_EQ(load_state(posix_file_system(), copy_)->version, 1U);
    EXPECT_FALSE(exists(posix_file_system(), copy_ + "/.weight_sync/journal"));
    EXPECT_FALSE(exists(posix_file_system(), copy_ + "/.weight_sync/journal.tmp"));
    return met;
  }

  void play_everywhere(Fault fault, double keep) {
    std::uint64_t calls = 0;
    while (play(fault, calls, keep) && !HasFailure()) ++calls;
    EXPECT_GT(calls, 10U) << "the faults did not reach the work";
  }

  TempDir dir_{TempDir::Where::kMemory};
  std::string base_ = dir_.file("base");
  std::string published_ = dir_.file("published");
  std::string copy_ = dir_.file("copy");
  std::string stash_ = dir_.file("stash");
  Weights before_, after_;
};

TEST_P(ApplyFaultTest, SurvivesEioAtEveryCall) { play_everywhere(Fault::kEio, 0); }
TEST_P(ApplyFaultTest, SurvivesAFullDiskAtEveryCall) { play_everywhere(Fault::kEnospc, 0); }
TEST_P(ApplyFaultTest, SurvivesAShortWriteAtEveryCall) { play_everywhere(Fault::kShortWrite, 0); }
TEST_P(ApplyFaultTest, SurvivesACrashBeforeEveryCall) { play_everywhere(Fault::kCrashBefore, 1); }
TEST_P(ApplyFaultTest, SurvivesLosingAllThatWasNotSynced) {
  play_everywhere(Fault::kCrashAfter, 0);
}
TEST_P(ApplyFaultTest, SurvivesLosingARandomPartOfWhatWasNotSynced) {
  play_everywhere(Fault::kCrashAfter, 0.5);
}

INSTANTIATE_TEST_SUITE_P(
    Encodings, ApplyFaultTest,
    ::testing::Values(ApplyCase{DirectoryLayout::kHfDelta, Encoding::kXor},
                      ApplyCase{DirectoryLayout::kHfDelta, Encoding::kOverwrite},
                      ApplyCase{DirectoryLayout::kFlush, Encoding::kDeltasZstd},
                      ApplyCase{DirectoryLayout::kFrames, Encoding::kCompact}),
    [](const auto& instance) {
      return std::string(driftless::info(instance.param.encoding).name);
    });

}  // namespace
}  // namespace driftless::testing
