// SPDX-License-Identifier: Apache-2.0
// Publishing under faults: a version is complete or not visible at all, and the next publisher
// succeeds.
#include <gtest/gtest.h>

#include "formats/version_dir.h"
#include "plugin/checkpoint/checkpoint_patcher.h"
#include "plugin/checkpoint/delta_writer.h"
#include "support/faulty_file_system.h"
#include "support/temp_dir.h"
#include "support/weights.h"

namespace driftless::testing {
namespace {

class PublishFaultTest : public ::testing::TestWithParam<DirectoryLayout> {
 protected:
  void SetUp() override {
    write_checkpoint(dir_.file("old"), before_);
    write_checkpoint(dir_.file("new"), after_);
    std::filesystem::create_directory(published_);
  }

  Result<DeltaReport> publish(FileSystem& fs) {
    DeltaOptions delta;
    delta.old_checkpoint = dir_.file("old");
    delta.new_checkpoint = dir_.file("new");
    delta.directory = published_;
    delta.directory_layout = GetParam();
    delta.version = 1;
    return write_delta(fs, delta);
  }

  // Expects that a visible version is complete.
  void expect_whole_or_absent(std::uint64_t at) {
    FileSystem& fs = posix_file_system();
    const auto versions = list_versions(fs, published_);
    ASSERT_TRUE(versions.ok());
    if (versions->empty()) return;
    copy_directory(dir_.file("old"), dir_.file("copy"));
    const auto applied = apply_versions(fs, published_, dir_.file("copy"), 1, {});
    EXPECT_TRUE(applied.ok()) << applied.status().to_string() << ", call " << at;
    EXPECT_TRUE(holds(dir_.file("copy"), after_)) << "call " << at;
  }

  bool play(Fault fault, std::uint64_t at, double keep) {
    std::filesystem::remove_all(published_);
    std::filesystem::create_directory(published_);
    std::filesystem::remove_all(dir_.file("stash"));
    std::filesystem::create_directory(dir_.file("stash"));
    FaultyFileSystem faulty(fault, at, dir_.file("stash"));
    const auto first = publish(faulty);
    const bool met = faulty.calls() > at;
    if (met && faulty.crashed()) faulty.lose_unsynced(keep, at);
    expect_whole_or_absent(at);
    if (first.ok()) {
      EXPECT_EQ(list_versions(posix_file_system(), published_)->size(), 1U);
    }
    if (list_versions(posix_file_system(), published_)->empty()) {
      const auto second = publish(posix_file_system());
      EXPECT_TRUE(second.ok()) << second.status().to_string() << ", call " << at;
      expect_whole_or_absent(at);
    }
    for (const auto& entry : std::filesystem::directory_iterator(published_)) {
      EXPECT_FALSE(entry.path().filename().string().ends_with(".tmp")) << entry.path();
    }
    return met;
  }

  void play_everywhere(Fault fault, double keep) {
    std::uint64_t calls = 0;
    while (play(fault, calls, keep) && !HasFailure()) ++calls;
    EXPECT_GT(calls, 8U) << "the faults did not reach the work";
  }

  TempDir dir_{TempDir::Where::kMemory};
  std::string published_ = dir_.file("published");
  Weights before_ = random_weights(1);
  Weights after_ = changed_weights(before_, 2, 0.02);
};

TEST_P(PublishFaultTest, EioAtEveryCall) { play_everywhere(Fault::kEio, 0); }
TEST_P(PublishFaultTest, AFullDiskAtEveryCall) { play_everywhere(Fault::kShortWrite, 0); }
TEST_P(PublishFaultTest, LosingAllThatWasNotSynced) { play_everywhere(Fault::kCrashAfter, 0); }
TEST_P(PublishFaultTest, LosingARandomPart) { play_everywhere(Fault::kCrashAfter, 0.5); }

INSTANTIATE_TEST_SUITE_P(Layouts, PublishFaultTest,
                         ::testing::Values(DirectoryLayout::kHfDelta, DirectoryLayout::kFlush),
                         [](const auto& instance) {
                           return std::string(to_string(instance.param));
                         });

}  // namespace
}  // namespace driftless::testing
