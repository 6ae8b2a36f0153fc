// SPDX-License-Identifier: Apache-2.0
#include "plugin/targets/stage_ahead.h"

#include <gtest/gtest.h>

#include "plugin/targets/tensor_changes.h"
#include "support/published_run.h"

namespace driftless::testing {
namespace {

class StageAheadTest : public ::testing::Test {
 protected:
  StageAheadTest() { step_ = run_.step(1, DirectoryLayout::kFrames, Encoding::kCompact); }

  std::unique_ptr<WeightTarget> target(Weights& held) {
    auto made = make_memory_target(run_.layout, pointers(held), VersionId{}, 2);
    EXPECT_TRUE(made.ok()) << made.status().to_string();
    return std::move(*made);
  }
  // The step as a fetcher delivers it, after the target's work ahead has seen the parts.
  std::vector<FetchedVersion> fetched(WeightTarget& of) {
    std::vector<FetchedVersion> chain;
    chain.push_back(step_.fetched());
    chain[0].ahead = of.begin_stage(chain[0].manifest, chain[0].manifest);
    EXPECT_NE(chain[0].ahead, nullptr);
    for (const MappedFile& part : chain[0].parts) chain[0].ahead->add(part);
    return chain;
  }

  PublishedRun run_{random_weights(1, 2000)};
  Publication step_;
};

TEST_F(StageAheadTest, EndsWhereStageAloneEnds) {
  Weights held = run_.weights[0];
  const auto into = target(held);
  auto staged = into->stage(fetched(*into));
  ASSERT_TRUE(staged.ok()) << staged.status().to_string();
  EXPECT_TRUE(same(held, run_.weights[0])) << "staging touched the weights";
  ASSERT_TRUE((*staged)->commit().ok());
  EXPECT_TRUE(same(held, run_.weights[1]));
  EXPECT_EQ(into->state().digest, digest_of(run_.weights[1]));
}

// To stage blocks that are already decoded needs no old values.
TEST_F(StageAheadTest, DecodedBlocksAreNotDecodedAgain) {
  const WeightLayout& layout = run_.layout;
  std::vector<FetchedVersion> fetched;
  fetched.push_back(step_.fetched());
  const std::vector<MappedFile> parts = fetched[0].parts;
  const auto chain = open_chain(posix_file_system(), std::move(fetched), layout, {}, 1);
  ASSERT_TRUE(chain.ok()) << chain.status().to_string();
  std::vector<std::uint32_t> all(layout.size());
  for (std::uint32_t i = 0; i < all.size(); ++i) all[i] = i;
  const OldUnits units = [&](std::uint32_t tensor, std::uint64_t first, std::uint64_t,
                             std::byte*) -> Result<const std::byte*> {
    return run_.weights[0].at(layout[tensor].name).bytes.data() +
           first * unit_bytes(layout[tensor].dtype);
  };
  const OldUnits none = [](auto...) -> Result<const std::byte*> {
    return error(StatusCode::kInternal, "asked for old units");
  };
  DecodedBlocks decoded;
  for (const MappedFile& part : parts) {
    const auto frame = Frame::decode(part.bytes(), layout, max_frame_body_bytes(layout));
    ASSERT_TRUE(frame.ok()) << frame.status().to_string();
    ASSERT_TRUE(decode_frame(layout, *frame, units, {all}, decoded).ok());
  }
  ASSERT_FALSE(decoded.empty());
  const auto plainly = fold_chain(layout, *chain, units, {all});
  const auto ahead = fold_chain(layout, *chain, none, {all, nullptr, 1, {}, &decoded});
  ASSERT_TRUE(plainly.ok() && ahead.ok()) << ahead.status().to_string();
  EXPECT_TRUE(decoded.empty()) << "blocks of no frame";
  for (const auto& [tensor, changes] : *plainly) {
    EXPECT_EQ(ahead->at(tensor).positions, changes.positions) << layout[tensor].name;
    EXPECT_EQ(ahead->at(tensor).values, changes.values) << layout[tensor].name;
  }
}

// Only the sweep, ahead or not, finds wrong units that no version changes.
TEST_F(StageAheadTest, WeightsThatWereWrongAlreadyAreNamed) {
  Weights held = run_.weights[0];
  const auto into = target(held);
  held.at("model.norm.weight").bytes[0] ^= std::byte{1};
  const auto staged = into->stage(fetched(*into));
  EXPECT_EQ(staged.status().code(), StatusCode::kMismatch);
  EXPECT_NE(staged.status().message().find("model.norm.weight"), std::string::npos)
      << staged.status().to_string();
}

TEST_F(StageAheadTest, WhatWasSeenOfOtherWeightsProvesNothingOfThese) {
  Weights right = run_.weights[0], wrong = run_.weights[0];
  const auto other = target(right);
  const auto into = target(wrong);
  wrong.at("model.norm.weight").bytes[0] ^= std::byte{1};
  EXPECT_EQ(into->stage(fetched(*other)).status().code(), StatusCode::kMismatch);
}

TEST_F(StageAheadTest, ADamagedPartIsLeftToStage) {
  step_.parts.begin()->second.back() ^= std::byte{1};
  Weights held = run_.weights[0];
  const auto into = target(held);
  const auto staged = into->stage(fetched(*into));
  EXPECT_EQ(staged.status().code(), StatusCode::kCorrupt) << staged.status().to_string();
  EXPECT_NE(staged.status().message().find(step_.parts.begin()->first), std::string::npos)
      << staged.status().to_string();
}

TEST_F(StageAheadTest, MayBeDroppedAtAnyTime) {
  Weights held = run_.weights[0];
  const auto into = target(held);
  fetched(*into).clear();
  into->begin_stage(step_.manifest, step_.manifest).reset();
  EXPECT_TRUE(same(held, run_.weights[0]));
}

}  // namespace
}  // namespace driftless::testing
