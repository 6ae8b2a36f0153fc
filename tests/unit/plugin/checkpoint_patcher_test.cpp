// SPDX-License-Identifier: Apache-2.0
#include "plugin/checkpoint/checkpoint_patcher.h"

#include <gtest/gtest.h>

#include <fstream>

#include "plugin/checkpoint/delta_writer.h"
#include "plugin/checkpoint/verify.h"
#include "support/temp_dir.h"
#include "support/weights.h"

namespace driftless::testing {
namespace {

struct Kind {
  DirectoryLayout layout;
  Encoding encoding;
};

// Three versions in a chain, published in one encoding.
class CheckpointPatcherTest : public ::testing::TestWithParam<Kind> {
 protected:
  void SetUp() override {
    weights_.push_back(random_weights(1, 300));
    for (std::uint64_t step = 1; step <= 3; ++step) {
      weights_.push_back(changed_weights(weights_.back(), step, 0.01 * static_cast<double>(step)));
    }
    for (std::size_t step = 0; step < weights_.size(); ++step) {
      write_checkpoint(step_path(step), weights_[step], step % 2 == 0 ? 1 : 2);
    }
    copy_directory(step_path(0), copy_);
  }

  std::string step_path(std::size_t step) { return dir_.file(concat("step", step)); }

  Result<DeltaReport> publish(std::size_t from, std::size_t to, std::string directory = {}) {
    DeltaOptions delta;
    delta.old_checkpoint = step_path(from);
    delta.new_checkpoint = step_path(to);
    delta.directory = directory.empty() ? published_ : directory;
    delta.directory_layout = GetParam().layout;
    delta.encoding = GetParam().encoding;
    delta.version = to;
    delta.base_version = from;
    delta.buffer_bytes = 3000;  // several flush files, tensors cut between them
    delta.threads = 2;
    return write_delta(posix_file_system(), delta);
  }

  void publish_all() {
    for (std::size_t step = 1; step < weights_.size(); ++step) {
      const auto done = publish(step - 1, step);
      ASSERT_TRUE(done.ok()) << done.status().to_string();
    }
  }

  Result<ApplyReport> apply(std::optional<std::uint64_t> to = std::nullopt,
                            VerifyMode verify = VerifyMode::kTouched) {
    ApplyOptions options;
    options.threads = 2;
    options.verify = verify;
    options.lock_wait = std::chrono::milliseconds(0);
    return apply_versions(posix_file_system(), published_, copy_, to, options);
  }

  TempDir dir_{TempDir::Where::kMemory};
  std::string published_ = dir_.file("published");
  std::string copy_ = dir_.file("copy");
  std::vector<Weights> weights_;
};

TEST_P(CheckpointPatcherTest, FollowsAChain) {
  publish_all();
  const auto done = apply();
  ASSERT_TRUE(done.ok()) << done.status().to_string();
  EXPECT_EQ(done->applied.size(), 3U);
  EXPECT_TRUE(holds(copy_, weights_[3]));
  const auto again = apply(std::nullopt, VerifyMode::kFull);
  ASSERT_TRUE(again.ok()) << again.status().to_string();
  EXPECT_TRUE(again->applied.empty());
}

TEST_P(CheckpointPatcherTest, StopsAtTheGivenPointAndResumes) {
  publish_all();
  ASSERT_TRUE(apply(1, VerifyMode::kFull).ok());
  EXPECT_TRUE(holds(copy_, weights_[1]));
  ASSERT_TRUE(apply(3, VerifyMode::kFull).ok());
  EXPECT_TRUE(holds(copy_, weights_[3]));
}

TEST_P(CheckpointPatcherTest, TakesAVersionThatSkipsOthers) {
  ASSERT_TRUE(publish(0, 2).ok());
  ASSERT_TRUE(publish(2, 3).ok());
  ASSERT_TRUE(apply().ok());
  EXPECT_TRUE(holds(copy_, weights_[3]));
}

TEST_P(CheckpointPatcherTest, RefusesToGoBack) {
  publish_all();
  ASSERT_TRUE(apply(2).ok());
  EXPECT_EQ(apply(1).status().code(), StatusCode::kWrongBase);
  EXPECT_TRUE(holds(copy_, weights_[2]));
}

TEST_P(CheckpointPatcherTest, RefusesAGap) {
  ASSERT_TRUE(publish(0, 1).ok());
  ASSERT_TRUE(publish(2, 3).ok());
  EXPECT_EQ(apply().status().code(), StatusCode::kWrongBase);
  EXPECT_TRUE(holds(copy_, weights_[0]));
}

TEST_P(CheckpointPatcherTest, RefusesAnotherRun) {
  publish_all();
  ASSERT_TRUE(apply(1).ok());
  const std::string other = dir_.file("other");
  ASSERT_TRUE(publish(0, 1, other).ok());
  ASSERT_TRUE(publish(1, 2, other).ok());
  std::filesystem::remove_all(published_);
  std::filesystem::rename(other, published_);
  EXPECT_EQ(apply(2).status().code(), StatusCode::kWrongRun);
  EXPECT_EQ(apply(1).status().code(), StatusCode::kWrongRun);  // even if there is nothing to do
  EXPECT_TRUE(holds(copy_, weights_[1]));
}

TEST_P(CheckpointPatcherTest, RefusesAWrongBaseAndChangesNothing) {
  publish_all();
  copy_directory(step_path(2), copy_);
  const Status status = apply(1).status();
  EXPECT_EQ(status.code(), StatusCode::kMismatch) << status.to_string();
  EXPECT_TRUE(holds(copy_, weights_[2]));
}

TEST_P(CheckpointPatcherTest, FindsDamageInAnUntouchedTensorOnlyByFull) {
  publish_all();
  Weights damaged = weights_[0];
  damaged["model.norm.weight"].bytes[5] ^= std::byte{4};  // no delta touches it
  std::filesystem::remove_all(copy_);
  write_checkpoint(copy_, damaged);
  EXPECT_EQ(apply(1, VerifyMode::kFull).status().code(), StatusCode::kMismatch);
  EXPECT_TRUE(holds(copy_, damaged));
  EXPECT_TRUE(apply(1).ok());
  EXPECT_EQ(apply(2, VerifyMode::kFull).status().code(), StatusCode::kMismatch);
}

TEST_P(CheckpointPatcherTest, FindsDamageSinceTheLastApply) {
  publish_all();
  ASSERT_TRUE(apply(1).ok());
  Weights damaged = weights_[1];
  damaged["model.embed.weight"].bytes[11] ^= std::byte{4};  // touched by every delta
  write_shard(dir_.file("shard"), damaged);
  std::filesystem::copy_file(dir_.file("shard"), copy_ + "/model.safetensors",
                             std::filesystem::copy_options::overwrite_existing);
  EXPECT_EQ(apply(2).status().code(), StatusCode::kMismatch);
  EXPECT_TRUE(holds(copy_, damaged));
}

TEST_P(CheckpointPatcherTest, RefusesWhileAnotherHoldsTheLock) {
  publish_all();
  ApplyOptions options;
  const auto other = CheckpointPatcher::open(posix_file_system(), copy_, options);
  ASSERT_TRUE(other.ok());
  EXPECT_EQ(apply().status().code(), StatusCode::kBusy);
}

TEST_P(CheckpointPatcherTest, RefusesOtherTensors) {
  publish_all();
  Weights other = weights_[0];
  other["model.extra"] = other["model.norm.weight"];
  std::filesystem::remove_all(copy_);
  write_checkpoint(copy_, other);
  EXPECT_EQ(apply().status().code(), StatusCode::kWrongLayout);
}

TEST_P(CheckpointPatcherTest, RefusesHardLinkedFiles) {
  publish_all();
  std::filesystem::create_hard_link(copy_ + "/model.safetensors", dir_.file("second_name"));
  EXPECT_EQ(apply().status().code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(holds(copy_, weights_[0]));
}

TEST_P(CheckpointPatcherTest, ProvesABaseWhoseStateOthersWroteByItsDigest) {
  publish_all();
  copy_directory(step_path(1), copy_);
  std::filesystem::create_directory(copy_ + "/.weight_sync");
  std::ofstream(copy_ + "/.weight_sync/state.json") << R"({"version":"000001"})";
  ASSERT_TRUE(apply(2).ok());
  EXPECT_TRUE(holds(copy_, weights_[2]));
  copy_directory(step_path(1), copy_);
  std::filesystem::create_directory(copy_ + "/.weight_sync");
  std::ofstream(copy_ + "/.weight_sync/state.json") << R"({"version":"000002"})";  // a false claim
  EXPECT_EQ(apply(3).status().code(), StatusCode::kMismatch);
  EXPECT_TRUE(holds(copy_, weights_[1]));
}

TEST_P(CheckpointPatcherTest, PublishingRefusesABaseThatIsNotThatVersion) {
  ASSERT_TRUE(publish(0, 1).ok());
  DeltaOptions delta;
  delta.old_checkpoint = step_path(0);  // not version 1
  delta.new_checkpoint = step_path(2);
  delta.directory = published_;
  EXPECT_EQ(write_delta(posix_file_system(), delta).status().code(), StatusCode::kWrongBase);
  EXPECT_EQ(list_versions(posix_file_system(), published_)->size(), 1U);
}

TEST_P(CheckpointPatcherTest, PublishingAgainOnABaseAsksForTheSameBase) {
  const auto first = publish(0, 1);
  ASSERT_TRUE(first.ok());
  const auto sibling = publish(0, 2);  // another version on version 0, of the same run
  ASSERT_TRUE(sibling.ok()) << sibling.status().to_string();
  EXPECT_EQ(sibling->manifest.id.run, first->manifest.id.run);
  DeltaOptions delta;
  delta.old_checkpoint = step_path(1);  // not version 0
  delta.new_checkpoint = step_path(3);
  delta.directory = published_;
  delta.version = 3;
  delta.base_version = 0;
  EXPECT_EQ(write_delta(posix_file_system(), delta).status().code(), StatusCode::kWrongBase);
}

INSTANTIATE_TEST_SUITE_P(Encodings, CheckpointPatcherTest,
                         ::testing::Values(Kind{DirectoryLayout::kHfDelta, Encoding::kXor},
                                           Kind{DirectoryLayout::kHfDelta, Encoding::kOverwrite},
                                           Kind{DirectoryLayout::kFlush, Encoding::kIndices},
                                           Kind{DirectoryLayout::kFlush, Encoding::kDeltas},
                                           Kind{DirectoryLayout::kFlush, Encoding::kDeltasZstd},
                                           Kind{DirectoryLayout::kFrames, Encoding::kCompact}),
                         [](const auto& instance) {
                           return std::string(driftless::info(instance.param.encoding).name);
                         });

class FullVersionTest : public CheckpointPatcherTest {};

TEST_P(FullVersionTest, BringsAnyVersionToItsOwn) {
  ASSERT_TRUE(publish(1, 2).ok());
  const auto done = apply();
  ASSERT_TRUE(done.ok()) << done.status().to_string();
  EXPECT_TRUE(holds(copy_, weights_[2]));
  ASSERT_TRUE(publish(2, 3).ok());
  copy_directory(step_path(1), copy_);  // the old content does not matter
  ASSERT_TRUE(apply().ok());
  EXPECT_TRUE(holds(copy_, weights_[3]));
}

INSTANTIATE_TEST_SUITE_P(Full, FullVersionTest,
                         ::testing::Values(Kind{DirectoryLayout::kHfDelta, Encoding::kFull}));

TEST(VerifyTest, NamesTheFirstDifference) {
  TempDir dir;
  const Weights weights = random_weights(3);
  Weights other = weights;
  other["model.layers.0.norm.weight"].bytes[9] ^= std::byte{1};
  other["model.norm.weight"].bytes[0] ^= std::byte{1};
  write_checkpoint(dir.file("a"), weights);
  write_checkpoint(dir.file("b"), other, 2);
  const auto a = Checkpoint::open(posix_file_system(), dir.file("a"));
  const auto b = Checkpoint::open(posix_file_system(), dir.file("b"));
  const auto same = compare_weights(*a, *a, 2, {});
  ASSERT_TRUE(same.ok());
  EXPECT_FALSE(same->has_value());
  const auto result = compare_weights(*a, *b, 2, {});
  ASSERT_TRUE(result.ok() && result->has_value());
  EXPECT_EQ((*result)->tensor, "model.layers.0.norm.weight");
  EXPECT_EQ((*result)->position, 2U);
  EXPECT_EQ((*result)->units, 2U);
  EXPECT_EQ((*result)->tensors, 2U);
  EXPECT_NE((*result)->value, (*result)->other_value);
}

TEST(VerifyTest, DescribesUnits) {
  const std::uint16_t one = 0x3f80;
  EXPECT_EQ(describe_unit(DType::kBF16, reinterpret_cast<const std::byte*>(&one)), "0x3f80 (1)");
  const std::uint16_t half = 0x3800;
  EXPECT_EQ(describe_unit(DType::kF16, reinterpret_cast<const std::byte*>(&half)), "0x3800 (0.5)");
  const std::uint16_t minus_zero = 0x8000;
  EXPECT_EQ(describe_unit(DType::kBF16, reinterpret_cast<const std::byte*>(&minus_zero)),
            "0x8000 (-0)");
}

}  // namespace
}  // namespace driftless::testing
