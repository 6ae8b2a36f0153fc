// SPDX-License-Identifier: Apache-2.0
// Folding versions into a checkpoint under faults: the checkpoint reaches the last version of the
// fold or stays at its old one, and is never between them. The next process (the same one, or
// another after a power cut) continues from there.
#include <gtest/gtest.h>

#include "plugin/targets/weight_target.h"
#include "support/faulty_file_system.h"
#include "support/published_run.h"
#include "support/temp_dir.h"

namespace driftless::testing {
namespace {

struct FoldCase {
  DirectoryLayout layout;
  Encoding encoding;
};

class FoldFaultTest : public ::testing::TestWithParam<FoldCase> {
 protected:
  void SetUp() override {
    for (const std::uint64_t version : {1U, 2U}) {
      steps_.push_back(run_.step(version, GetParam().layout, GetParam().encoding));
    }
    write_checkpoint(base_, run_.weights[0], 2);
  }

  // Brings the target to version 2 in one commit, if it is not there yet.
  Status fold(WeightTarget& target) {
    if (!target.state().valid) DRIFTLESS_RETURN_IF_ERROR(target.recover());
    if (target.state().id.version == 2) return {};
    std::vector<FetchedVersion> chain;
    for (const Publication& step : steps_) chain.push_back(step.fetched());
    DRIFTLESS_ASSIGN_OR_RETURN(const std::unique_ptr<StagedChange> staged,
                               target.stage(std::move(chain)));
    return staged->commit().status();
  }

  Status open_and_fold(FileSystem& fs) {
    DRIFTLESS_ASSIGN_OR_RETURN(const std::unique_ptr<WeightTarget> target,
                               make_checkpoint_target(fs, copy_, 1));
    return fold(*target);
  }

  void prepare() {
    copy_directory(base_, copy_);
    std::filesystem::remove_all(stash_);
    std::filesystem::create_directory(stash_);
  }

  void expect_whole(std::uint64_t at) {
    const bool journal = exists(posix_file_system(), copy_ + "/.weight_sync/journal");
    EXPECT_TRUE(journal || holds(copy_, run_.weights[0]) || holds(copy_, run_.weights[2]))
        << "between two versions without a journal, call " << at;
  }

  void expect_done(std::uint64_t at) {
    EXPECT_TRUE(holds(copy_, run_.weights[2])) << "call " << at;
    EXPECT_FALSE(exists(posix_file_system(), copy_ + "/.weight_sync/journal"));
    EXPECT_FALSE(exists(posix_file_system(), copy_ + "/.weight_sync/journal.tmp"));
  }

  // One process meets a fault; another one comes after it. Returns whether the fault occurred.
  bool play_processes(Fault fault, std::uint64_t at, double keep) {
    prepare();
    FaultyFileSystem faulty(fault, at, stash_);
    const Status first = open_and_fold(faulty);
    const bool met = faulty.calls() > at;
    if (met && faulty.crashed()) faulty.lose_unsynced(keep, at);
    expect_whole(at);
    const Status second = open_and_fold(posix_file_system());
    EXPECT_TRUE(second.ok()) << second.to_string() << ", call " << at;
    expect_done(at);
    return met;
  }

  // One process meets a fault in a live target, and continues with that target.
  bool play_one_process(Fault fault, std::uint64_t at) {
    prepare();
    FaultyFileSystem faulty(fault, at, stash_);
    auto target = make_checkpoint_target(faulty, copy_, 1);
    if (!target.ok()) return true;
    const Status first = fold(**target);
    const bool met = faulty.calls() > at;
    if (!first.ok()) {
      const TargetState state = (*target)->state();
      EXPECT_TRUE(!state.valid || holds(copy_, run_.weights[state.id.version])) << "call " << at;
      const Status second = fold(**target);
      EXPECT_TRUE(second.ok()) << second.to_string() << ", call " << at;
    }
    expect_done(at);
    EXPECT_EQ((*target)->state().digest, digest_of(run_.weights[2]));
    return met;
  }

  template <typename Play>
  void everywhere(const Play& play) {
    std::uint64_t calls = 0;
    while (play(calls) && !HasFailure()) ++calls;
    EXPECT_GT(calls, 10U) << "the faults did not reach the work";
  }

  TempDir dir_{TempDir::Where::kMemory};
  std::string base_ = dir_.file("base");
  std::string copy_ = dir_.file("copy");
  std::string stash_ = dir_.file("stash");
  PublishedRun run_{random_weights(1)};
  std::vector<Publication> steps_;
};

TEST_P(FoldFaultTest, SurvivesEioAtEveryCall) {
  everywhere([this](std::uint64_t at) { return play_processes(Fault::kEio, at, 0); });
}
TEST_P(FoldFaultTest, SurvivesAShortWriteAtEveryCall) {
  everywhere([this](std::uint64_t at) { return play_processes(Fault::kShortWrite, at, 0); });
}
TEST_P(FoldFaultTest, SurvivesACrashBeforeEveryCall) {
  everywhere([this](std::uint64_t at) { return play_processes(Fault::kCrashBefore, at, 1); });
}
TEST_P(FoldFaultTest, SurvivesLosingAllThatWasNotSynced) {
  everywhere([this](std::uint64_t at) { return play_processes(Fault::kCrashAfter, at, 0); });
}
TEST_P(FoldFaultTest, SurvivesLosingARandomPartOfWhatWasNotSynced) {
  everywhere([this](std::uint64_t at) { return play_processes(Fault::kCrashAfter, at, 0.5); });
}
TEST_P(FoldFaultTest, TheSameTargetGoesOnAfterEio) {
  everywhere([this](std::uint64_t at) { return play_one_process(Fault::kEio, at); });
}
TEST_P(FoldFaultTest, TheSameTargetGoesOnAfterALackOfSpace) {
  everywhere([this](std::uint64_t at) { return play_one_process(Fault::kEnospc, at); });
}

INSTANTIATE_TEST_SUITE_P(Kinds, FoldFaultTest,
                         ::testing::Values(FoldCase{DirectoryLayout::kFrames, Encoding::kDeltas},
                                           FoldCase{DirectoryLayout::kFrames, Encoding::kCompact},
                                           FoldCase{DirectoryLayout::kFlush, Encoding::kDeltasZstd},
                                           FoldCase{DirectoryLayout::kHfDelta, Encoding::kXor}),
                         [](const auto& instance) {
                           return concat(to_string(instance.param.layout), "_",
                                         driftless::info(instance.param.encoding).name);
                         });

}  // namespace
}  // namespace driftless::testing
