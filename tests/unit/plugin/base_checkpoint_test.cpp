// SPDX-License-Identifier: Apache-2.0
// Checkpoints that store tensors which the run does not publish: a frozen tower, layers of a
// drafter, the stored lm_head of a model that ties it to its embedding.
#include <gtest/gtest.h>

#include <fstream>

#include "formats/run_info.h"
#include "formats/version_dir.h"
#include "plugin/checkpoint/checkpoint_patcher.h"
#include "support/faulty_file_system.h"
#include "support/published_run.h"
#include "support/temp_dir.h"

namespace driftless::testing {
namespace {

constexpr const char* kEmbedding = "model.embed_tokens.weight";
constexpr const char* kHead = "lm_head.weight";
constexpr const char* kFrozen = "visual.tower.weight";

class BaseCheckpoint : public ::testing::Test {
 protected:
  void SetUp() override { store(); }

  static Weights published() {
    Weights weights = random_weights(1);
    auto embedding = weights.extract("model.embed.weight");
    embedding.key() = kEmbedding;
    weights.insert(std::move(embedding));
    return weights;
  }
  // The content of the directory when the run is at `version`.
  [[nodiscard]] Weights stored(std::size_t version, bool tied = true) const {
    Weights all = run_.weights[version];
    all[kHead] = run_.weights[tied ? version : 0].at(kEmbedding);
    all[kFrozen] = run_.weights[0].at("model.norm.weight");
    return all;
  }
  void store(std::string_view config = R"({"tie_word_embeddings": true})") {
    std::filesystem::remove_all(copy_);
    write_checkpoint(copy_, stored(0), 2);
    std::ofstream(copy_ + "/config.json") << config;
  }
  [[nodiscard]] Result<std::unique_ptr<WeightTarget>> open() const {
    Result<std::unique_ptr<WeightTarget>> target =
        make_checkpoint_target(posix_file_system(), copy_, 1);
    if (!target.ok()) return target;
    if (const Status adopted = (*target)->adopt_layout(run_.layout); !adopted.ok()) return adopted;
    return target;
  }
  static std::vector<FetchedVersion> chain_of(const Publication& publication) {
    std::vector<FetchedVersion> chain;
    chain.push_back(publication.fetched());
    return chain;
  }
  Status apply(const Publication& publication) {
    DRIFTLESS_ASSIGN_OR_RETURN(const std::unique_ptr<WeightTarget> target, open());
    DRIFTLESS_ASSIGN_OR_RETURN(const std::unique_ptr<StagedChange> staged,
                               target->stage(chain_of(publication)));
    return staged->commit().status();
  }
  void flip(const char* tensor) const {
    const auto checkpoint = Checkpoint::open(posix_file_system(), copy_);
    ASSERT_TRUE(checkpoint.ok());
    const TensorLocation& at = checkpoint->location(*checkpoint->layout().find(tensor));
    std::fstream file(checkpoint->files()[at.file].file().path(),
                      std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(static_cast<std::streamoff>(at.file_offset + 9));
    const auto byte = static_cast<char>(file.get() ^ 4);
    file.seekp(static_cast<std::streamoff>(at.file_offset + 9));
    file.put(byte);
  }

  TempDir dir_{TempDir::Where::kMemory};
  std::string copy_ = dir_.file("copy");
  PublishedRun run_{published()};
};

TEST_F(BaseCheckpoint, WhatIsNotPublishedIsLeftAloneAndACopyFollowsItsSource) {
  const Publication first = run_.step(1), second = run_.step(2);
  {
    const auto target = open();
    ASSERT_TRUE(target.ok()) << target.status().to_string();
    EXPECT_EQ((*target)->state().digest, digest_of(run_.weights[0])) << "of what is published";
    EXPECT_TRUE((*target)->state().valid);
  }
  ASSERT_TRUE(apply(first).ok());
  EXPECT_TRUE(holds(copy_, stored(1)));
  const Status again = apply(second);  // by another process
  ASSERT_TRUE(again.ok()) << again.to_string();
  EXPECT_TRUE(holds(copy_, stored(2)));
  ASSERT_NE(run_.weights[2].at(kEmbedding).bytes, run_.weights[0].at(kEmbedding).bytes);
  const auto state = load_state(posix_file_system(), copy_);
  ASSERT_TRUE(state.ok());
  EXPECT_EQ(state->left_alone, std::vector<std::string>{kFrozen});
  EXPECT_EQ(state->copies, (std::map<std::string, std::string>{{kHead, kEmbedding}}));
}

TEST_F(BaseCheckpoint, OnlyWhatTheModelTiesIsACopy) {
  store(R"({"tie_word_embeddings": false})");
  ASSERT_TRUE(apply(run_.step(1)).ok());
  EXPECT_TRUE(holds(copy_, stored(1, false)));
  store(R"({"text_config": {"tie_word_embeddings": true}})");
  ASSERT_TRUE(apply(run_.step(1)).ok());
  EXPECT_TRUE(holds(copy_, stored(1)));
  store();
  flip(kHead);  // tied by the configuration, but with other bits
  const auto target = open();
  ASSERT_TRUE(target.ok()) << target.status().to_string();
  ASSERT_TRUE((*(*target)->stage(chain_of(run_.step(1))))->commit().ok());
  EXPECT_EQ(load_state(posix_file_system(), copy_)->left_alone,
            (std::vector<std::string>{kHead, kFrozen}));
}

TEST_F(BaseCheckpoint, AMissingTensorIsRefusedByName) {
  Weights less = stored(0);
  less.erase("model.norm.weight");
  std::filesystem::remove_all(copy_);
  write_checkpoint(copy_, less, 2);
  const Status refused = open().status();
  EXPECT_EQ(refused.code(), StatusCode::kWrongLayout);
  EXPECT_NE(refused.message().find("'model.norm.weight'"), std::string::npos)
      << refused.to_string();
}

TEST_F(BaseCheckpoint, AChangedCopyIsFoundAndMendedByAFullVersion) {
  ASSERT_TRUE(apply(run_.step(1)).ok());
  flip(kHead);
  {
    const auto target = open();
    ASSERT_TRUE(target.ok()) << target.status().to_string();
    EXPECT_FALSE((*target)->state().valid);
    EXPECT_FALSE((*target)->stage(chain_of(run_.step(2))).ok());
  }
  const Status mended = apply(run_.anchor(2));
  ASSERT_TRUE(mended.ok()) << mended.to_string();
  EXPECT_TRUE(holds(copy_, stored(2)));
}

TEST_F(BaseCheckpoint, AnInterruptedApplyEndsWithItsCopies) {
  std::filesystem::create_directory(dir_.file("stash"));
  bool interrupted = false;
  for (std::uint64_t at = 0; at < 200; ++at) {
    store();
    {
      FaultyFileSystem faulty(Fault::kCrashAfter, at, dir_.file("stash"));
      auto target = make_checkpoint_target(faulty, copy_, 1);
      if (!target.ok() || !(*target)->adopt_layout(run_.layout).ok()) continue;
      auto staged = (*target)->stage(chain_of(run_.step(1)));
      if (staged.ok() && (*staged)->commit().ok()) break;
    }
    const bool decided = exists(posix_file_system(), copy_ + "/.weight_sync/journal");
    interrupted = interrupted || decided;
    const auto target = open();
    ASSERT_TRUE(target.ok()) << at << ": " << target.status().to_string();
    ASSERT_TRUE((*target)->state().valid) << at;
    EXPECT_TRUE(holds(copy_, stored((*target)->state().id.version))) << at;
    if (decided) {
      EXPECT_EQ((*target)->state().id.version, 1U);
    }
  }
  EXPECT_TRUE(interrupted);
}

TEST_F(BaseCheckpoint, ApplyTakesTheRunsTensorsFromItsAnnouncement) {
  const std::string versions = dir_.file("versions");
  Publication first = run_.step(1);
  {
    auto writer = VersionWriter::create(posix_file_system(), versions, 1);
    ASSERT_TRUE(writer.ok()) << writer.status().to_string();
    for (const auto& [name, bytes] : first.parts) {
      std::ofstream(writer->file_path(name), std::ios::binary)
          .write(reinterpret_cast<const char*>(bytes.data()),
                 static_cast<std::streamsize>(bytes.size()));
    }
    ASSERT_TRUE(writer->publish(first.manifest).ok());
  }
  std::ofstream(versions + "/run.json") << run_info_to_json(run_.info());
  ApplyOptions options;
  options.verify = VerifyMode::kFull;
  const auto applied = apply_versions(posix_file_system(), versions, copy_, std::nullopt, options);
  ASSERT_TRUE(applied.ok()) << applied.status().to_string();
  EXPECT_TRUE(holds(copy_, stored(1)));
}

}  // namespace
}  // namespace driftless::testing
