// SPDX-License-Identifier: Apache-2.0
// The files of a checkpoint are replaced, restored or written while a rollout uses it. The bytes of
// an old mapping must not count as those at the path, and a journal must not be written into files
// for which it was not made.
#include <gtest/gtest.h>

#include <fstream>

#include "plugin/agent/changed_tensors.h"
#include "plugin/checkpoint/checkpoint_patcher.h"
#include "plugin/targets/weight_target.h"
#include "support/faulty_file_system.h"
#include "support/published_run.h"
#include "support/temp_dir.h"

namespace driftless::testing {
namespace {

class CheckpointIdentity : public ::testing::Test {
 protected:
  void SetUp() override {
    for (std::size_t version = 0; version < run_.weights.size(); ++version) {
      write_checkpoint(kept(version), run_.weights[version], 2);
    }
    copy_directory(kept(0), copy_);
    std::filesystem::create_directory(dir_.file("stash"));
  }

  [[nodiscard]] std::string kept(std::size_t version) const {
    return dir_.file(concat("kept", version));
  }
  [[nodiscard]] static std::vector<FetchedVersion> chain_of(const Publication& step) {
    std::vector<FetchedVersion> chain;
    chain.push_back(step.fetched());
    return chain;
  }
  [[nodiscard]] Publication step(std::uint64_t version) {
    return run_.step(version, DirectoryLayout::kFrames, Encoding::kDeltas);
  }
  // Replaces each weight file by another one of the same name, as rsync, cp --remove-destination or
  // a download do.
  void replace_files(const std::string& from) const {
    for (const auto& entry : std::filesystem::directory_iterator(from)) {
      if (entry.path().extension() != ".safetensors") continue;
      const std::string name = entry.path().filename().string();
      std::filesystem::copy_file(entry.path(), copy_ + "/" + name + ".new");
      std::filesystem::rename(copy_ + "/" + name + ".new", copy_ + "/" + name);
    }
  }
  void write_in_place(const std::string& name, const std::string& text) const {
    std::fstream(copy_ + "/" + name, std::ios::in | std::ios::out | std::ios::binary) << text;
  }
  // Replaces the first occurrence in place. Returns the old content of the file.
  [[nodiscard]] std::string replace_in(const std::string& name, const std::string& found,
                                       const std::string& written) const {
    const std::string before = *read_text(posix_file_system(), copy_ + "/" + name, 1 << 24);
    const std::size_t at = before.find(found);
    EXPECT_NE(at, std::string::npos) << name << " without " << found;
    std::string text = before;
    write_in_place(name, text.replace(at, found.size(), written));
    return before;
  }
  // Applies version 1, and stops as soon as its journal is decided.
  void crash_after_deciding() {
    for (std::uint64_t at = 0; at < 200; ++at) {
      copy_directory(kept(0), copy_);
      FaultyFileSystem faulty(Fault::kCrashAfter, at, dir_.file("stash"));
      auto target = make_checkpoint_target(faulty, copy_, 1);
      if (!target.ok()) continue;
      auto staged = (*target)->stage(chain_of(step(1)));
      if (staged.ok()) {
        EXPECT_FALSE((*staged)->commit().ok());
      }
      if (journal_is_there()) return;
    }
    FAIL() << "no call decides";
  }
  [[nodiscard]] bool journal_is_there() const {
    return exists(posix_file_system(), copy_ + "/.weight_sync/journal");
  }

  TempDir dir_{TempDir::Where::kMemory};
  std::string copy_ = dir_.file("copy");
  PublishedRun run_ = make_run();

  static PublishedRun make_run() {
    PublishedRun run(random_weights(1));
    run.weights.push_back(changed_weights(run.weights.back(), 1, 0.02));
    run.weights.push_back(changed_weights(run.weights.back(), 2, 0.02));
    return run;
  }
};

TEST_F(CheckpointIdentity, FilesReplacedBetweenStagingAndCommitAreNotWritten) {
  auto target = make_checkpoint_target(posix_file_system(), copy_, 1);
  ASSERT_TRUE(target.ok()) << target.status().to_string();
  auto staged = (*target)->stage(chain_of(step(1)));
  ASSERT_TRUE(staged.ok()) << staged.status().to_string();
  replace_files(kept(2));
  const Status refused = (*staged)->commit().status();
  EXPECT_EQ(refused.code(), StatusCode::kMismatch) << refused.to_string();
  EXPECT_NE(refused.message().find(copy_ + "/model-0000"), std::string::npos)
      << refused.to_string();
  EXPECT_TRUE(holds(copy_, run_.weights[2])) << "what was put there stays as it is";
  EXPECT_FALSE(journal_is_there());
  EXPECT_FALSE((*target)->state().valid) << "nobody knows what these files are";
}

// The write is in a tensor that the next version does not touch. The sweep finds it before that
// version is staged, or, with prove: always, before it is committed.
TEST_F(CheckpointIdentity, ForeignWritesAreFoundByASweep) {
  PublishedRun run(run_.weights[0]);
  run.weights.push_back(run_.weights[0]);
  run.weights[1].at("model.norm.weight").bytes[0] ^= std::byte{1};
  const std::vector<std::byte>& embed = run_.weights[0].at("model.embed.weight").bytes;
  const std::string found(reinterpret_cast<const char*>(embed.data()), 64);
  const auto scribble = [&] {
    for (const auto& entry : std::filesystem::directory_iterator(copy_)) {
      const std::string name = entry.path().filename().string();
      if (!name.ends_with(".safetensors")) continue;
      const std::string text = *read_text(posix_file_system(), entry.path().string(), 1 << 24);
      if (text.find(found) == std::string::npos) continue;
      static_cast<void>(replace_in(name, found, std::string(found.size(), 'x')));
    }
  };
  for (const bool always : {false, true}) {
    std::filesystem::remove_all(copy_);
    copy_directory(kept(0), copy_);
    auto target = make_checkpoint_target(posix_file_system(), copy_, 1);
    ASSERT_TRUE(target.ok()) << target.status().to_string();
    (*target)->set_proof({always, 1});
    if (!always) scribble();
    auto staged = (*target)->stage(chain_of(run.step(1)));
    Status status = staged.status();
    if (always) {
      ASSERT_TRUE(staged.ok()) << staged.status().to_string();
      scribble();
      status = (*staged)->commit().status();
    }
    EXPECT_EQ(status.code(), StatusCode::kMismatch) << status.to_string();
    EXPECT_FALSE((*target)->state().valid) << always;
  }
}

TEST_F(CheckpointIdentity, FilesReplacedBeforeStagingAreReadAgain) {
  for (const bool same : {true, false}) {
    copy_directory(kept(0), copy_);
    auto target = make_checkpoint_target(posix_file_system(), copy_, 1);
    ASSERT_TRUE(target.ok()) << target.status().to_string();
    replace_files(kept(same ? 0 : 2));
    auto staged = (*target)->stage(chain_of(step(1)));
    EXPECT_EQ(staged.ok(), same) << staged.status().to_string();
    EXPECT_EQ((*target)->state().valid, same);
    if (staged.ok()) {
      EXPECT_TRUE((*staged)->commit().ok());
    }
    EXPECT_TRUE(holds(copy_, run_.weights[same ? 1 : 2]));
  }
}

TEST_F(CheckpointIdentity, PlacesWrittenByOthersBetweenStagingAndCommitAreNotOverwritten) {
  auto target = make_checkpoint_target(posix_file_system(), copy_, 1);
  ASSERT_TRUE(target.ok()) << target.status().to_string();
  auto staged = (*target)->stage(chain_of(step(1)));
  ASSERT_TRUE(staged.ok()) << staged.status().to_string();
  for (const auto& entry : std::filesystem::directory_iterator(kept(2))) {
    if (entry.path().extension() != ".safetensors") continue;
    std::ifstream from(entry.path(), std::ios::binary);
    std::fstream to(copy_ + "/" + entry.path().filename().string(),
                    std::ios::in | std::ios::out | std::ios::binary);
    to << from.rdbuf();
  }
  const Status refused = (*staged)->commit().status();
  EXPECT_EQ(refused.code(), StatusCode::kMismatch) << refused.to_string();
  EXPECT_TRUE(holds(copy_, run_.weights[2]));
  EXPECT_FALSE(journal_is_there());
}

// The first shard's header gets another tensor name or becomes unreadable, or the index names
// another file.
struct ForeignWrite {
  std::string file, found, written;
};
const std::vector<ForeignWrite>& foreign_writes() {
  static const std::vector<ForeignWrite> writes = {
      {"model-00001-of-00002.safetensors", "\"dtype\"", "\"dtypf\""},
      {"model-00001-of-00002.safetensors", "weight\":{", "weighs\":{"},
      {"model.safetensors.index.json", "model-00001", "model-00002"},
  };
  return writes;
}

TEST_F(CheckpointIdentity, NoVersionIsLabelledOverAHeaderOrIndexThatOthersWrote) {
  for (const ForeignWrite& write : foreign_writes()) {
    for (const bool before_staging : {true, false}) {
      const std::string what = concat(write.file, " ", write.written, " ", before_staging);
      copy_directory(kept(0), copy_);
      auto target = make_checkpoint_target(posix_file_system(), copy_, 1);
      ASSERT_TRUE(target.ok()) << target.status().to_string();
      std::string before;
      if (before_staging) before = replace_in(write.file, write.found, write.written);
      auto staged = (*target)->stage(chain_of(run_.anchor(1)));
      EXPECT_EQ(staged.ok(), !before_staging) << what << ": " << staged.status().to_string();
      if (!before_staging) {
        before = replace_in(write.file, write.found, write.written);
        const Status refused = (*staged)->commit().status();
        EXPECT_EQ(refused.code(), StatusCode::kMismatch) << what << ": " << refused.to_string();
        EXPECT_NE(refused.message().find(write.file), std::string::npos) << refused.to_string();
        staged->reset();
      }
      EXPECT_FALSE((*target)->state().valid) << what;
      EXPECT_EQ(load_state(posix_file_system(), copy_)->version, 0U) << what;
      EXPECT_FALSE(journal_is_there()) << what;
      // After it is repaired in place, the checkpoint takes a full version.
      write_in_place(write.file, before);
      staged = (*target)->stage(chain_of(run_.anchor(2)));
      ASSERT_TRUE(staged.ok()) << what << ": " << staged.status().to_string();
      ASSERT_TRUE((*staged)->commit().ok()) << what;
      EXPECT_TRUE(holds(copy_, run_.weights[2])) << what;
    }
  }
}

TEST_F(CheckpointIdentity, AnEquivalentHeaderIsReadAgain) {
  auto target = make_checkpoint_target(posix_file_system(), copy_, 1);
  ASSERT_TRUE(target.ok()) << target.status().to_string();
  const std::string before = replace_in("model-00001-of-00002.safetensors", "\"pt\"", "\"tf\"");
  auto staged = (*target)->stage(chain_of(step(1)));
  ASSERT_TRUE(staged.ok()) << staged.status().to_string();
  ASSERT_TRUE((*staged)->commit().ok());
  EXPECT_TRUE(holds(copy_, run_.weights[1]));
}

TEST_F(CheckpointIdentity, AJournalIsFinishedInTheFilesThatItWasMadeFor) {
  crash_after_deciding();
  const auto target = make_checkpoint_target(posix_file_system(), copy_, 1);
  ASSERT_TRUE(target.ok()) << target.status().to_string();
  EXPECT_TRUE(holds(copy_, run_.weights[1]));
  EXPECT_TRUE((*target)->state().valid);
  // Restored from a copy: other files with the same weights.
  for (const std::size_t version : {0U, 1U}) {
    crash_after_deciding();
    replace_files(kept(version));
    ASSERT_TRUE(make_checkpoint_target(posix_file_system(), copy_, 1).ok());
    EXPECT_TRUE(holds(copy_, run_.weights[1]));
  }
}

TEST_F(CheckpointIdentity, AJournalIsNotReplayedOntoOtherFiles) {
  crash_after_deciding();
  replace_files(kept(2));
  const auto target = make_checkpoint_target(posix_file_system(), copy_, 1);
  EXPECT_EQ(target.status().code(), StatusCode::kMismatch) << target.status().to_string();
  EXPECT_NE(target.status().message().find(copy_), std::string::npos);
  EXPECT_NE(target.status().message().find("journal"), std::string::npos);
  EXPECT_TRUE(holds(copy_, run_.weights[2])) << "nothing was written into them";
  EXPECT_TRUE(journal_is_there());
}

TEST_F(CheckpointIdentity, AJournalIsNotReplayedOntoFilesThatDifferElsewhere) {
  crash_after_deciding();
  Weights odd = run_.weights[0];
  odd.at("model.norm.weight").bytes[7] ^= std::byte{1};  // version 1 does not touch it
  write_checkpoint(dir_.file("odd"), odd, 2);
  replace_files(dir_.file("odd"));
  const auto target = make_checkpoint_target(posix_file_system(), copy_, 1);
  EXPECT_EQ(target.status().code(), StatusCode::kMismatch) << target.status().to_string();
  EXPECT_TRUE(holds(copy_, odd)) << "nothing was written into them";
}

// A commit's tensor numbers are those of the run, even if the checkpoint stores more tensors.
TEST(ChangedTensors, AreThoseOfTheRunBesideWhatItDoesNotPublish) {
  const TempDir dir(TempDir::Where::kMemory);
  Weights stored = random_weights(1);
  stored["model.embed_tokens.weight"] = stored.at("model.embed.weight");
  PublishedRun run{stored};
  stored["a.first"] = stored.at("model.norm.weight");
  stored["lm_head.weight"] = stored.at("model.embed_tokens.weight");
  write_checkpoint(dir.file("model"), stored);
  auto target = make_checkpoint_target(posix_file_system(), dir.file("model"), 1);
  ASSERT_TRUE(target.ok() && (*target)->adopt_layout(run.layout).ok());
  const Publication step = run.step(1);
  std::vector<FetchedVersion> chain;
  chain.push_back(step.fetched());
  auto staged = (*target)->stage(std::move(chain));
  ASSERT_TRUE(staged.ok()) << staged.status().to_string();
  ASSERT_TRUE((*staged)->commit().ok());
  const std::set<std::uint32_t> some = {*run.layout.find("model.embed_tokens.weight")};
  const auto written =
      write_changed_tensors(posix_file_system(), dir.file("model"), some, dir.file("changed"));
  ASSERT_TRUE(written.ok() && *written) << written.status().to_string();
  const auto back = Checkpoint::open(posix_file_system(), dir.file("changed"));
  ASSERT_TRUE(back.ok()) << back.status().to_string();
  ASSERT_EQ(back->layout().size(), 2U);
  EXPECT_EQ(back->layout()[0].name, "lm_head.weight") << "a tied tensor's copy goes with it";
  EXPECT_EQ(back->layout()[1].name, "model.embed_tokens.weight");
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_TRUE(std::ranges::equal(back->tensor(i).bytes(),
                                   run.weights[1].at("model.embed_tokens.weight").bytes));
  }
}

}  // namespace
}  // namespace driftless::testing
