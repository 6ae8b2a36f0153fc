// SPDX-License-Identifier: Apache-2.0
// What every target in memory must do, contiguous or spread over parameters, on the host or (in
// gpu/, which compiles this file again) on a GPU. It takes deltas in every encoding and full
// versions, undoes both, and refuses to commit onto weights that other code wrote into.
#include <gtest/gtest.h>

#include "support/published_run.h"
#include "support/weights_in_memory.h"

namespace driftless::testing {
namespace {

struct Kind {
  DirectoryLayout layout;
  Encoding encoding;
};
using Row = std::tuple<Shape, Kind>;

std::string name_of(const ::testing::TestParamInfo<Row>& instance) {
  const auto& [shape, kind] = instance.param;
  return concat(shape == Shape::kContiguous ? "contiguous_" : "spread_", to_string(kind.layout),
                "_", driftless::info(kind.encoding).name);
}

std::vector<FetchedVersion> chain(const std::vector<Publication>& publications) {
  std::vector<FetchedVersion> versions;
  for (const Publication& each : publications) versions.push_back(each.fetched());
  return versions;
}

class TargetTable : public ::testing::TestWithParam<Row> {
 protected:
  [[nodiscard]] static Kind kind() { return std::get<1>(GetParam()); }
  Publication step(std::uint64_t version) {
    return run_.step(version, kind().layout, kind().encoding);
  }
  Publication anchor(std::uint64_t version) { return run_.anchor(version, kind().layout); }

  // Commits version 2 onto `before`, the weights at version 0, and undoes it.
  void goes_there_and_back(WeightTarget& target, Weights before,  // a step moves the run's
                           std::vector<Publication> publications) {
    const TargetState state = target.state();
    auto staged = target.stage(chain(publications));
    ASSERT_TRUE(staged.ok()) << staged.status().to_string();
    EXPECT_TRUE(weights_.holds(before)) << "staging touched the weights";
    EXPECT_FALSE((*staged)->undo().ok()) << "nothing was committed";
    const auto report = (*staged)->commit();
    ASSERT_TRUE(report.ok()) << report.status().to_string();
    EXPECT_TRUE(weights_.holds(run_.weights[2]));
    EXPECT_EQ(target.state().digest, digest_of(run_.weights[2]));
    EXPECT_EQ(target.state().id, (VersionId{run_.run, 2}));
    EXPECT_EQ(report->version, 2U);
    EXPECT_EQ(report->digest, target.state().digest);
    EXPECT_FALSE((*staged)->commit().ok()) << "a change is committed once";
    const Status undone = (*staged)->undo();
    ASSERT_TRUE(undone.ok()) << undone.to_string();
    EXPECT_TRUE(weights_.holds(before)) << "undo brings every bit back";
    EXPECT_EQ(target.state(), state);
    EXPECT_FALSE((*staged)->undo().ok()) << "twice";
  }

  PublishedRun run_{random_weights(1, 100)};
  WeightsInMemory weights_{run_.layout, std::get<0>(GetParam()), run_.weights[0]};
};

class DeltaTable : public TargetTable {};

TEST_P(DeltaTable, GoesThereAndBack) {
  const auto target = weights_.open(VersionId{});
  goes_there_and_back(*target, run_.weights[0], {step(1), step(2)});
}

TEST_P(DeltaTable, FollowsStepByStep) {
  const auto target = weights_.open(VersionId{});
  for (const std::uint64_t version : {1, 2, 3}) {
    auto staged = target->stage(chain({step(version)}));
    ASSERT_TRUE(staged.ok()) << staged.status().to_string();
    ASSERT_TRUE((*staged)->commit().ok());
    EXPECT_TRUE(weights_.holds(run_.weights[version]));
    EXPECT_EQ(target->state().digest, digest_of(run_.weights[version]));
  }
}

TEST_P(DeltaTable, AWrongDigestLeavesEveryBitAsItWas) {
  Publication bad = step(2);
  bad.manifest.digest.lanes[0] ^= 1;
  const auto target = weights_.open(VersionId{});
  auto staged = target->stage(chain({step(1), bad}));
  const Status status = staged.ok() ? (*staged)->commit().status() : staged.status();
  EXPECT_EQ(status.code(), StatusCode::kMismatch) << status.to_string();
  EXPECT_NE(status.message().find("full version"), std::string_view::npos) << status.to_string();
  EXPECT_TRUE(weights_.holds(run_.weights[0]));
  EXPECT_EQ(target->state().id.version, 0U);
  EXPECT_TRUE(target->state().valid);
}

TEST_P(DeltaTable, AForeignWriteIsFoundAndNoVersionIsHeld) {
  const Publication first = step(1);
  for (std::size_t map = 0; map < weights_.maps(); ++map) {
    const auto target = weights_.open(VersionId{});
    const TensorSpec& tensor = run_.layout[weights_.tensor_of(map)];
    const std::vector<std::byte>& before = run_.weights[0].at(tensor.name).bytes;
    const std::vector<std::byte>& after = run_.weights[1].at(tensor.name).bytes;
    const auto staged = target->stage(chain({first}));
    ASSERT_TRUE(staged.ok()) << staged.status().to_string();
    std::optional<std::uint64_t> unit;  // a unit that both the version and other code change
    for (std::size_t at = 0; at < before.size() && !unit; ++at) {
      const std::uint64_t changed = at / unit_bytes(tensor.dtype);
      if (before[at] != after[at] && weights_.flip(map, changed)) unit = changed;
    }
    if (!unit) continue;  // no change goes to this tensor
    const Status status = (*staged)->commit().status();
    EXPECT_EQ(status.code(), StatusCode::kMismatch) << tensor.name << ": " << status.to_string();
    EXPECT_FALSE(weights_.holds(run_.weights[0])) << "the foreign bit stays";
    EXPECT_FALSE(target->state().valid) << "it is not version 0";
    weights_.flip(map, *unit);
    EXPECT_TRUE(weights_.holds(run_.weights[0])) << tensor.name << ": nothing else changed";
    EXPECT_EQ(target->state().id.version, 0U);
  }
}

TEST_P(DeltaTable, OfSomeTensorsItTakesWhatItHolds) {
  const std::uint32_t missing =
      *run_.layout.find("model.embed.weight");  // which every step changes
  const auto target = weights_.open(VersionId{}, missing);
  ASSERT_TRUE(target->state().partial);
  auto staged = target->stage(chain({step(1), step(2)}));
  ASSERT_TRUE(staged.ok()) << staged.status().to_string();
  ASSERT_TRUE((*staged)->commit().ok());
  Weights expected = run_.weights[2];
  expected["model.embed.weight"] = run_.weights[0].at("model.embed.weight");
  EXPECT_TRUE(weights_.holds(expected));
  expected.erase("model.embed.weight");
  EXPECT_EQ(target->state().digest, digest_of(expected));
  ASSERT_TRUE((*staged)->undo().ok());
  EXPECT_TRUE(weights_.holds(run_.weights[0]));
}

INSTANTIATE_TEST_SUITE_P(
    Rows, DeltaTable,
    ::testing::Combine(::testing::Values(Shape::kContiguous, Shape::kSpread),
                       ::testing::Values(Kind{DirectoryLayout::kFrames, Encoding::kIndices},
                                         Kind{DirectoryLayout::kFrames, Encoding::kDeltas},
                                         Kind{DirectoryLayout::kFrames, Encoding::kDeltasZstd},
                                         Kind{DirectoryLayout::kFrames, Encoding::kCompact},
                                         Kind{DirectoryLayout::kHdf5, Encoding::kDeltas},
                                         Kind{DirectoryLayout::kHdf5, Encoding::kCompact},
                                         Kind{DirectoryLayout::kFlush, Encoding::kIndices},
                                         Kind{DirectoryLayout::kFlush, Encoding::kDeltasZstd},
                                         Kind{DirectoryLayout::kHfDelta, Encoding::kXor},
                                         Kind{DirectoryLayout::kHfDelta, Encoding::kOverwrite})),
    name_of);

class FullTable : public TargetTable {
 protected:
  FullTable() { static_cast<void>(run_.step(2)); }
};

TEST_P(FullTable, OnAVersionGoesThereAndBack) {
  const auto target = weights_.open(VersionId{});
  goes_there_and_back(*target, run_.weights[0], {anchor(2)});
}

TEST_P(FullTable, WhereEverythingDiffersGoesThereAndBack) {
  const Weights other = random_weights(99, 100);
  weights_.load(other);
  const auto target = weights_.open(VersionId{});
  goes_there_and_back(*target, other, {anchor(2)});
}

TEST_P(FullTable, OntoNoVersionStays) {
  weights_.load(random_weights(99, 100));
  const auto target = weights_.open(std::nullopt);
  EXPECT_FALSE(target->state().valid);
  auto staged = target->stage(chain({anchor(2)}));
  ASSERT_TRUE(staged.ok()) << staged.status().to_string();
  ASSERT_TRUE((*staged)->commit().ok());
  EXPECT_TRUE(weights_.holds(run_.weights[2]));
  EXPECT_EQ(target->state().digest, digest_of(run_.weights[2]));
  EXPECT_EQ((*staged)->undo().code(), StatusCode::kUnsupported);
  EXPECT_TRUE(target->state().valid) << "and stays at it";
  EXPECT_EQ(target->stage(chain({anchor(1)})).status().code(), StatusCode::kWrongBase)
      << "never back";
}

TEST_P(FullTable, ReplacesForeignWrites) {
  const auto target = weights_.open(VersionId{});
  for (std::size_t map = 0; map < weights_.maps(); ++map) {
    for (std::uint64_t unit = 0; unit < 40 && !weights_.flip(map, unit); ++unit) {
    }
  }
  auto staged = target->stage(chain({anchor(2)}));
  ASSERT_TRUE(staged.ok()) << staged.status().to_string();
  ASSERT_TRUE((*staged)->commit().ok());
  EXPECT_TRUE(weights_.holds(run_.weights[2]));
}

TEST_P(FullTable, AWrongDigestIsRefusedBeforeAnythingIsTouched) {
  Publication bad = anchor(2);
  bad.manifest.digest.lanes[1] ^= 1;
  const auto target = weights_.open(VersionId{});
  EXPECT_EQ(target->stage(chain({bad})).status().code(), StatusCode::kMismatch);
  EXPECT_TRUE(weights_.holds(run_.weights[0]));
}

INSTANTIATE_TEST_SUITE_P(
    Rows, FullTable,
    ::testing::Combine(::testing::Values(Shape::kContiguous, Shape::kSpread),
                       ::testing::Values(Kind{DirectoryLayout::kFrames, Encoding::kFull},
                                         Kind{DirectoryLayout::kHfDelta, Encoding::kFull})),
    name_of);

}  // namespace
}  // namespace driftless::testing
