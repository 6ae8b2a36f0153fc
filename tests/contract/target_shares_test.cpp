// SPDX-License-Identifier: Apache-2.0
// Every rank proves its share. The shares add up to the tensors in any sharding, version after
// version, without a false alarm; a flipped bit at any place is found and named.
#include <gtest/gtest.h>

#include "support/sharded_weights.h"

namespace driftless::testing {
namespace {

class Shares : public ::testing::Test {
 protected:
  // Makes weights up to `version`.
  void make(std::uint64_t version) {
    while (run_.weights.size() <= version) {
      run_.weights.push_back(
          quiet(changed_weights(run_.weights.back(), run_.weights.size(), 0.02, "still")));
    }
  }
  // Versions (first, last], in one of the forms in which they are published.
  std::vector<FetchedVersion> steps(std::uint64_t first, std::uint64_t last, Encoding encoding) {
    make(last);
    std::vector<FetchedVersion> chain;
    for (std::uint64_t version = first + 1; version <= last; ++version) {
      const bool interchange = encoding == Encoding::kXor || encoding == Encoding::kOverwrite;
      const auto kind = interchange ? DirectoryLayout::kHfDelta : DirectoryLayout::kFrames;
      chain.push_back(run_.step(version, kind, encoding).fetched());
    }
    return chain;
  }
  std::vector<FetchedVersion> full(std::uint64_t version) {
    make(version);
    return {run_.anchor(version).fetched()};
  }
  static Status commit(MappedTarget& target, std::vector<FetchedVersion> chain) {
    auto staged = target.stage(std::move(chain));
    if (!staged.ok()) return staged.status();
    return (*staged)->commit().status();
  }

  PublishedRun run_{shardable_weights(5)};
  std::mt19937_64 random_{9};
};

TEST_F(Shares, AddUpInAnyShardingThroughAThousandVersionsWithoutAnAlarm) {
  std::uint64_t versions = 0;
  for (std::uint64_t seed = 0; versions < 1000; ++seed) {
    SCOPED_TRACE(seed);
    ShardedWeights engine(run_, seed);
    std::uint64_t at = 0;
    engine.expect_adds_up(run_.weights[at]);
    for (unsigned round = 0; round < 25; ++round) {
      const std::uint64_t next = at + 1 + random_() % 3;
      const bool whole = random_() % 10 == 0, back = random_() % 5 == 0;
      const auto coding = random_() % 2 == 0 ? Encoding::kDeltas : Encoding::kIndices;
      const std::vector<FetchedVersion> chain = whole ? full(next) : steps(at, next, coding);
      for (const auto& rank : engine.ranks()) {
        MappedTarget& target = rank->target();
        const driftless::Shares before = target.tracked();
        auto staged = target.stage(chain);
        ASSERT_TRUE(staged.ok()) << staged.status().to_string();
        const auto committed = (*staged)->commit();
        ASSERT_TRUE(committed.ok()) << committed.status().to_string();
        const driftless::Shares after = target.tracked();
        if (back) {
          ASSERT_TRUE((*staged)->undo().ok());
          EXPECT_EQ(target.tracked(), before);
          ASSERT_TRUE(target.sweep().ok());
          staged->reset();
          const Status again = commit(target, chain);
          ASSERT_TRUE(again.ok()) << again.to_string();
        }
        EXPECT_EQ(target.tracked(), after);
        const auto swept = target.sweep();
        ASSERT_TRUE(swept.ok()) << swept.status().to_string();
        EXPECT_EQ(*swept, after);
        EXPECT_TRUE(target.proven_in_share());
      }
      versions += next - at;
      at = next;
      engine.expect_adds_up(run_.weights[at]);
      if (::testing::Test::HasFailure()) return;
    }
  }
}

TEST_F(Shares, AThousandFlippedBitsAreFoundByTheNextStagingAndNamed) {
  unsigned flips = 0;
  for (std::uint64_t seed = 100; flips < 1000; ++seed) {
    SCOPED_TRACE(seed);
    ShardedWeights engine(run_, seed);
    std::uint64_t at = 0;
    for (unsigned round = 0; round < 20; ++round) {
      for (const auto& rank : engine.ranks()) {
        MappedTarget& target = rank->target();
        const std::string parameter = rank->flip(random_);
        const Status found = target.stage(steps(at, at + 1, Encoding::kDeltas)).status();
        ASSERT_EQ(found.code(), StatusCode::kMismatch) << parameter << ": " << found.to_string();
        EXPECT_NE(found.message().find(concat("'", parameter, "'")), std::string::npos)
            << parameter << ": " << found.to_string();
        EXPECT_NE(found.message().find(concat("rank ", rank->number(), ":")), std::string::npos)
            << found.to_string();
        EXPECT_FALSE(target.state().valid || target.proven_in_share());
        EXPECT_EQ(target.sweep().status().code(), StatusCode::kWrongBase);
        EXPECT_FALSE(target.stage(steps(at, at + 1, Encoding::kDeltas)).ok()) << "only a full one";
        const Status repaired = commit(target, full(at + 1));
        ASSERT_TRUE(repaired.ok()) << repaired.to_string();
        EXPECT_TRUE(target.sweep().ok());
        ++flips;
      }
      engine.expect_adds_up(run_.weights[++at]);
      if (::testing::Test::HasFailure()) return;
    }
  }
}

// The elements that differ from the version in the target's copies, as (parameter, element).
std::vector<std::pair<std::string, std::uint64_t>> different(const MappedTarget& target,
                                                             std::uint32_t tensor,
                                                             const TestTensor& expected) {
  std::vector<std::pair<std::string, std::uint64_t>> found;
  const TensorSpec& spec = (*target.layout())[tensor];
  const unsigned width = unit_bytes(spec.dtype);
  // Starts at several elements, and limits the number that one call returns.
  for (std::uint64_t first = 0; first < spec.units(); first += 100) {
    const auto copies =
        target.copies(tensor, first, std::min<std::uint64_t>(100, spec.units() - first));
    EXPECT_TRUE(copies.ok()) << copies.status().to_string();
    for (const HeldCopy& copy : *copies) {
      std::size_t at = 0;
      for (const HeldRun& run : copy.runs) {
        for (std::uint64_t unit = run.first; unit < run.first + run.count; ++unit, at += width) {
          const bool odd = std::ranges::find(copy.foreign, unit) != copy.foreign.end();
          if (odd || std::memcmp(copy.values.data() + at, expected.bytes.data() + unit * width,
                                 width) != 0) {
            found.emplace_back(copy.parameter, unit);
          }
        }
      }
      EXPECT_EQ(at, copy.values.size());
    }
  }
  return found;
}

TEST_F(Shares, AFlippedBitIsFoundAtItsPlaceWhateverTheStateIs) {
  constexpr std::uint64_t kBlock = 64;
  for (std::uint64_t seed = 200; seed < 240; ++seed) {
    SCOPED_TRACE(seed);
    ShardedWeights engine(run_, seed);
    for (const auto& rank : engine.ranks()) {
      MappedTarget& target = rank->target();
      std::vector<BlockSums> before;
      for (std::uint32_t tensor = 0; tensor < run_.layout.size(); ++tensor) {
        before.push_back(*target.blocks(tensor, kBlock));
        EXPECT_TRUE(before.back().disagree.empty());
        EXPECT_TRUE(
            different(target, tensor, run_.weights[0].at(run_.layout[tensor].name)).empty());
      }
      EXPECT_EQ(target.look()->shares, target.tracked());
      EXPECT_TRUE(target.look()->suspects.empty());
      const std::string parameter = rank->flip(random_);
      ASSERT_EQ(target.sweep().status().code(), StatusCode::kMismatch);
      const auto looked = target.look();
      ASSERT_TRUE(looked.ok()) << looked.status().to_string();
      ASSERT_EQ(looked->suspects.size(), 1U);
      for (std::uint32_t tensor = 0; tensor < run_.layout.size(); ++tensor) {
        const auto places = different(target, tensor, run_.weights[0].at(run_.layout[tensor].name));
        const auto blocks = target.blocks(tensor, kBlock);
        ASSERT_TRUE(blocks.ok()) << blocks.status().to_string();
        ASSERT_EQ(places.size(), tensor == looked->suspects[0] ? 1U : 0U);
        std::vector<std::uint64_t> suspects = blocks->disagree;
        for (std::size_t i = 0; i < blocks->sums.size(); ++i) {
          const bool known = std::ranges::find(suspects, i) != suspects.end();
          if (!known && blocks->sums[i] != before[tensor].sums[i]) suspects.push_back(i);
        }
        ASSERT_EQ(suspects.size(), places.size());
        if (places.empty()) continue;
        EXPECT_EQ(places[0].first, parameter);
        EXPECT_EQ(suspects[0], places[0].second / kBlock);
      }
      EXPECT_FALSE(target.state().valid);
    }
    if (::testing::Test::HasFailure()) return;
  }
}

TEST_F(Shares, WhatATensorDoesNotHaveIsNotRead) {
  ShardedWeights engine(run_, 3);
  const MappedTarget& target = engine.ranks().front()->target();
  const std::uint64_t units = run_.layout[0].units();
  EXPECT_EQ(target.copies(0, units, 1).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(target.copies(0, 1, ~std::uint64_t{0}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(target.blocks(99, 8).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(target.blocks(0, 0).status().code(), StatusCode::kInvalidArgument);
}

// Tensors without maps (on a GPU these take buckets), and the encodings that change a tensor's own
// bits.
TEST_F(Shares, TensorsAsTheyAreInEveryEncoding) {
  for (const Encoding encoding : {Encoding::kDeltas, Encoding::kIndices, Encoding::kDeltasZstd,
                                  Encoding::kCompact, Encoding::kXor, Encoding::kOverwrite}) {
    SCOPED_TRACE(driftless::info(encoding).name);
    const std::unique_ptr<TestMemory> memory = test_memory();
    std::vector<std::byte*> data;
    for (const auto& [name, tensor] : run_.weights[0]) {
      data.push_back(memory->allocate(tensor.bytes.size()));
      memory->write(data.back(), tensor.bytes);
    }
    auto made = make_memory_target(run_.layout, data, VersionId{}, 2, memory->memory());
    ASSERT_TRUE(made.ok()) << made.status().to_string();
    MappedTarget& target = **made;
    const auto adds_up = [&](std::uint64_t version) {
      ASSERT_EQ(target.tracked().tensors.size(), run_.layout.size());
      for (const TensorShare& share : target.tracked().tensors) {
        const std::string& name = run_.layout[share.tensor].name;
        EXPECT_EQ(share.digest, digest_of({{name, run_.weights[version].at(name)}})) << name;
      }
      EXPECT_TRUE(target.sweep().ok());
    };
    adds_up(0);
    const bool chained = encoding != Encoding::kXor && encoding != Encoding::kOverwrite;
    ASSERT_TRUE(commit(target, steps(0, 1, encoding)).ok());
    adds_up(1);
    auto staged = target.stage(steps(1, chained ? 4 : 2, encoding));
    ASSERT_TRUE(staged.ok()) << staged.status().to_string();
    ASSERT_TRUE((*staged)->commit().ok());
    adds_up(chained ? 4 : 2);
    ASSERT_TRUE((*staged)->undo().ok());
    adds_up(1);
    staged->reset();
    ASSERT_TRUE(commit(target, full(6)).ok());
    adds_up(6);
  }
}

TEST_F(Shares, InThePauseIfConfigured) {
  ShardedWeights engine(run_, 3);
  RankWeights& rank = *engine.ranks().front();
  MappedTarget& target = rank.target();
  target.set_proof({true, 1});
  auto staged = target.stage(steps(0, 1, Encoding::kDeltas));
  ASSERT_TRUE(staged.ok()) << staged.status().to_string();
  const std::string parameter = rank.flip(random_);
  const auto committed = (*staged)->commit();
  EXPECT_EQ(committed.status().code(), StatusCode::kMismatch);
  EXPECT_NE(committed.status().message().find(parameter), std::string::npos)
      << committed.status().to_string();
  EXPECT_FALSE(target.state().valid) << "the flipped bit is still there";
  staged->reset();
  ASSERT_TRUE(commit(target, full(1)).ok());
  ASSERT_TRUE(commit(target, steps(1, 2, Encoding::kDeltas)).ok());
  EXPECT_EQ(target.state().id.version, 2U);
}

// No step changes "still", so only a sweep reads it.
TEST_F(Shares, EverySoManyVersionsIfConfigured) {
  const std::uint32_t still = *run_.layout.find("f.still.weight");
  for (const std::uint64_t every : {1, 3}) {
    ShardedWeights engine(run_, 4);
    RankWeights& rank = *engine.ranks().front();
    rank.target().set_proof({false, every});
    auto staged = rank.target().stage(steps(0, 1, Encoding::kDeltas));
    ASSERT_TRUE(staged.ok()) << staged.status().to_string();
    const std::string parameter = rank.flip(random_, still);
    ASSERT_TRUE((*staged)->commit().ok()) << "what it touches is as it was";
    staged->reset();
    for (std::uint64_t at = 1; at + 1 < every; ++at) {
      ASSERT_TRUE(commit(rank.target(), steps(at, at + 1, Encoding::kDeltas)).ok());
    }
    const std::uint64_t at = rank.target().state().id.version;
    const Status found = commit(rank.target(), steps(at, at + 1, Encoding::kDeltas));
    EXPECT_EQ(found.code(), StatusCode::kMismatch) << every;
    EXPECT_NE(found.message().find(parameter), std::string::npos) << found.to_string();
    EXPECT_EQ(rank.target().state().id.version, at);
  }
}

// Tensors that are held in a narrower type, through a loader, or not at all.
TEST_F(Shares, NamesWhatCannotBeReadBack) {
  const std::unique_ptr<TestMemory> memory = test_memory();
  MappedParts parts;
  parts.layout = run_.layout;
  parts.memory = memory->memory();
  WeightMap narrow;
  narrow.tensor = *run_.layout.find("c.bias");
  narrow.unit_bytes = 2;
  narrow.cast = ValueCast::kF32ToBF16;
  narrow.parameter = "bias";
  const std::uint64_t units = run_.layout[narrow.tensor].units();
  const StridedView all{0, {units}, {1}};
  narrow.map = *StridedMap::make(all, units, all, units);
  narrow.data = memory->allocate(units * 2);
  parts.maps = {narrow};
  parts.refused = {{*run_.layout.find("d.scale"), "it is packed"}};
  MappedOptions options;
  options.initial = VersionId{};
  options.initial_digest = digest_of(run_.weights[0]);
  auto made = make_mapped_target(std::move(parts), options);
  ASSERT_TRUE(made.ok()) << made.status().to_string();
  const driftless::Shares& shares = (*made)->tracked();
  EXPECT_TRUE(shares.tensors.empty());
  ASSERT_EQ(shares.unproven.size(), 2U);
  EXPECT_EQ(shares.unproven[0].tensor, narrow.tensor);
  EXPECT_NE(shares.unproven[0].why.find("'bias'"), std::string::npos);
  EXPECT_EQ(shares.unproven[1].why, "it is packed");
}

// The same units are the same region, whatever maps describe them.
TEST_F(Shares, RegionsAreOfUnitsAndNotOfMaps) {
  std::mt19937_64 random(1);
  const std::uint32_t tensor = *run_.layout.find("a.qkv.weight");
  std::vector<Hash128> regions;
  using Block = std::array<std::uint64_t, 4>;  // first row, rows, first column, columns
  const std::vector<std::vector<Block>> plans = {{{0, 24, 4, 10}},
                                                 {{0, 9, 4, 10}, {9, 15, 4, 10}},
                                                 {{0, 24, 9, 5}, {0, 24, 4, 5}},
                                                 {{0, 24, 5, 10}}};
  for (const auto& plan : plans) {
    RankWeights rank(run_.layout, 0);
    for (const auto& [row, rows, column, columns] : plan) {
      rank.add(tensor, row, rows, column, columns, random);
    }
    rank.open({});
    ASSERT_EQ(rank.target().tracked().tensors.size(), 1U);
    EXPECT_EQ(rank.target().tracked().tensors[0].units, 240U);
    regions.push_back(rank.target().tracked().tensors[0].region);
  }
  EXPECT_EQ(regions[1], regions[0]);
  EXPECT_EQ(regions[2], regions[0]);
  EXPECT_NE(regions[3], regions[0]);
}

}  // namespace
}  // namespace driftless::testing
