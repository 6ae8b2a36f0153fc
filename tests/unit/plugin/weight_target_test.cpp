// SPDX-License-Identifier: Apache-2.0
#include "plugin/targets/weight_target.h"

#include <gtest/gtest.h>

#include "plugin/targets/mapped_target.h"
#include "support/published_run.h"

namespace driftless::testing {
namespace {

struct Kind {
  DirectoryLayout layout;
  Encoding encoding;
};

std::string name_of(const ::testing::TestParamInfo<Kind>& instance) {
  return concat(to_string(instance.param.layout), "_",
                driftless::info(instance.param.encoding).name);
}

std::vector<FetchedVersion> chain_of(const std::vector<Publication>& publications) {
  std::vector<FetchedVersion> chain;
  for (const Publication& publication : publications) chain.push_back(publication.fetched());
  return chain;
}

template <typename... Publications>
std::vector<FetchedVersion> chain(const Publications&... publications) {
  return chain_of({publications...});
}

// A memory target at version 0 of the run.
struct Memory {
  explicit Memory(const PublishedRun& run, unsigned threads = 2)
      : held(run.weights[0]), target(make(run, held, VersionId{}, threads)) {}

  static std::unique_ptr<WeightTarget> make(const PublishedRun& run, Weights& held,
                                            std::optional<VersionId> initial, unsigned threads) {
    auto made = make_memory_target(run.layout, pointers(held), initial, threads);
    EXPECT_TRUE(made.ok()) << made.status().to_string();
    return std::move(*made);
  }

  Status apply(std::vector<FetchedVersion> versions) {
    auto staged = target->stage(std::move(versions));
    if (!staged.ok()) return staged.status();
    return (*staged)->commit().status();
  }
  StatusCode refusal(std::vector<FetchedVersion> versions) {
    return target->stage(std::move(versions)).status().code();
  }

  Weights held;
  std::unique_ptr<WeightTarget> target;
};

class DeltaKindTest : public ::testing::TestWithParam<Kind> {
 protected:
  Publication step(std::uint64_t version) {
    return run_.step(version, GetParam().layout, GetParam().encoding);
  }
  PublishedRun run_{random_weights(1, 200)};
};

TEST_P(DeltaKindTest, AFoldEndsWhereSingleStepsEnd) {
  const std::vector<Publication> steps{step(1), step(2), step(3)};
  Memory folded(run_), single(run_);
  const auto staged = folded.target->stage(chain_of(steps));
  ASSERT_TRUE(staged.ok()) << staged.status().to_string();
  EXPECT_TRUE(same(folded.held, run_.weights[0])) << "staging touched the weights";
  const auto report = (*staged)->commit();
  ASSERT_TRUE(report.ok()) << report.status().to_string();
  for (const Publication& each : steps) {
    const Status status = single.apply(chain(each));
    ASSERT_TRUE(status.ok()) << status.to_string();
  }
  EXPECT_TRUE(same(folded.held, run_.weights[3]));
  EXPECT_TRUE(same(single.held, run_.weights[3]));
  EXPECT_EQ(folded.target->state(), single.target->state());
  EXPECT_EQ(folded.target->state().digest, digest_of(run_.weights[3]));
  EXPECT_EQ(folded.target->state().id, (VersionId{run_.run, 3}));
  EXPECT_EQ(report->version, 3U);
  EXPECT_GT(report->changed_units, 0U);
}

TEST_P(DeltaKindTest, UndoBringsEveryBitBack) {
  Memory memory(run_);
  ASSERT_TRUE(memory.apply(chain(step(1))).ok());
  const TargetState before = memory.target->state();
  const auto staged = memory.target->stage(chain(step(2), step(3)));
  ASSERT_TRUE(staged.ok());
  EXPECT_FALSE((*staged)->undo().ok()) << "nothing was committed";
  ASSERT_TRUE((*staged)->commit().ok());
  ASSERT_TRUE((*staged)->undo().ok());
  EXPECT_TRUE(same(memory.held, run_.weights[1]));
  EXPECT_EQ(memory.target->state(), before);
  EXPECT_FALSE((*staged)->undo().ok()) << "twice";
  EXPECT_FALSE((*staged)->commit().ok()) << "a change is committed once";
  ASSERT_TRUE(memory.apply(chain(step(2))).ok()) << "and the target goes on";
  EXPECT_TRUE(same(memory.held, run_.weights[2]));
}

TEST_P(DeltaKindTest, AWrongDigestLeavesEveryBitAsItWas) {
  Publication bad = step(2);
  bad.manifest.digest.lanes[0] ^= 1;
  Memory memory(run_);
  const Status status = memory.apply(chain(step(1), bad));
  EXPECT_EQ(status.code(), StatusCode::kMismatch) << status.to_string();
  EXPECT_NE(status.message().find("full version"), std::string_view::npos) << status.to_string();
  EXPECT_TRUE(same(memory.held, run_.weights[0]));
  EXPECT_EQ(memory.target->state().id.version, 0U);
  EXPECT_TRUE(memory.target->state().valid);
}

TEST_P(DeltaKindTest, APartialTargetTakesWhatItHolds) {
  Weights held = run_.weights[0];
  std::vector<std::byte*> data = pointers(held);
  data[0] = nullptr;  // model.embed.weight, which every step changes
  auto target = make_memory_target(run_.layout, data, VersionId{}, 1);
  ASSERT_TRUE(target.ok());
  ASSERT_TRUE((*target)->state().partial);
  const auto staged = (*target)->stage(chain(step(1), step(2)));
  ASSERT_TRUE(staged.ok()) << staged.status().to_string();
  ASSERT_TRUE((*staged)->commit().ok());
  Weights expected = run_.weights[2];
  const std::string first = run_.layout[0].name;
  expected[first] = run_.weights[0].at(first);
  EXPECT_TRUE(same(held, expected));
  expected.erase(first);
  EXPECT_EQ((*target)->state().digest, digest_of(expected)) << "of the held tensors";
}

TEST_P(DeltaKindTest, ACheckpointDirectoryFoldsThem) {
  TempDir dir(TempDir::Where::kMemory);
  write_checkpoint(dir.file("copy"), run_.weights[0], 2);
  {
    auto target = make_checkpoint_target(posix_file_system(), dir.file("copy"), 2);
    ASSERT_TRUE(target.ok()) << target.status().to_string();
    EXPECT_EQ((*target)->state().digest, digest_of(run_.weights[0]));
    auto staged = (*target)->stage(chain(step(1), step(2), step(3)));
    ASSERT_TRUE(staged.ok()) << staged.status().to_string();
    EXPECT_TRUE(holds(dir.file("copy"), run_.weights[0])) << "staging touched the weights";
    EXPECT_EQ((*target)->stage(chain(step(1))).status().code(), StatusCode::kBusy);
    const auto report = (*staged)->commit();
    ASSERT_TRUE(report.ok()) << report.status().to_string();
    EXPECT_EQ(report->digest, digest_of(run_.weights[3]));
    EXPECT_EQ((*staged)->undo().code(), StatusCode::kUnsupported);
    EXPECT_EQ((*target)->state().id, (VersionId{run_.run, 3}));
    staged->reset();
    ASSERT_TRUE((*(*target)->stage(chain(step(4))))->commit().ok());
  }
  EXPECT_TRUE(holds(dir.file("copy"), run_.weights[4]));
  auto again = make_checkpoint_target(posix_file_system(), dir.file("copy"), 1);
  ASSERT_TRUE(again.ok()) << "the lock goes with the target";
  EXPECT_EQ((*again)->state().id, (VersionId{run_.run, 4}));
}

INSTANTIATE_TEST_SUITE_P(Kinds, DeltaKindTest,
                         ::testing::Values(Kind{DirectoryLayout::kFrames, Encoding::kIndices},
                                           Kind{DirectoryLayout::kFrames, Encoding::kDeltas},
                                           Kind{DirectoryLayout::kFrames, Encoding::kDeltasZstd},
                                           Kind{DirectoryLayout::kFrames, Encoding::kCompact},
                                           Kind{DirectoryLayout::kHdf5, Encoding::kDeltas},
                                           Kind{DirectoryLayout::kFlush, Encoding::kIndices},
                                           Kind{DirectoryLayout::kFlush, Encoding::kDeltasZstd},
                                           Kind{DirectoryLayout::kHfDelta, Encoding::kXor},
                                           Kind{DirectoryLayout::kHfDelta, Encoding::kOverwrite}),
                         name_of);

class FullKindTest : public ::testing::TestWithParam<Kind> {
 protected:
  FullKindTest() { (void)run_.step(3); }
  PublishedRun run_{random_weights(1, 200)};
};

TEST_P(FullKindTest, OnAVersionWritesWhatDiffersAndGoesBack) {
  Weights held = run_.weights[0];
  const auto target = Memory::make(run_, held, VersionId{}, 2);
  auto staged = target->stage(chain(run_.anchor(2, GetParam().layout)));
  ASSERT_TRUE(staged.ok()) << staged.status().to_string();
  EXPECT_TRUE(same(held, run_.weights[0])) << "staging touched the weights";
  const auto report = (*staged)->commit();
  ASSERT_TRUE(report.ok()) << report.status().to_string();
  EXPECT_TRUE(same(held, run_.weights[2]));
  EXPECT_EQ(target->state().digest, digest_of(run_.weights[2]));
  ASSERT_TRUE((*staged)->undo().ok());
  EXPECT_TRUE(same(held, run_.weights[0]));
  EXPECT_EQ(target->state().digest, digest_of(run_.weights[0]));
  EXPECT_EQ(target->state().id.version, 0U);
}

TEST_P(FullKindTest, ReplacesForeignWrites) {
  Weights held = run_.weights[0];
  const auto target = Memory::make(run_, held, VersionId{}, 2);
  for (auto& [name, tensor] : held) {
    if (!tensor.bytes.empty()) tensor.bytes.back() ^= std::byte{1};
  }
  auto staged = target->stage(chain(run_.anchor(2, GetParam().layout)));
  ASSERT_TRUE(staged.ok()) << staged.status().to_string();
  const Weights damaged = held;
  ASSERT_TRUE((*staged)->commit().ok());
  EXPECT_TRUE(same(held, run_.weights[2]));
  EXPECT_EQ(target->state().digest, digest_of(run_.weights[2]));
  EXPECT_EQ((*staged)->undo().code(), StatusCode::kMismatch) << "that is not version 0";
  EXPECT_TRUE(same(held, damaged)) << "to the bit, whoever wrote it";
  EXPECT_FALSE(target->state().valid);
}

TEST_P(FullKindTest, ReplacesWhateverIsThere) {
  Weights held = changed_weights(run_.weights[0], 99, 0.5, "none");
  const auto target = Memory::make(run_, held, std::nullopt, 2);
  EXPECT_FALSE(target->state().valid);
  const Publication anchor = run_.anchor(2, GetParam().layout);
  auto staged = target->stage(chain(anchor));
  ASSERT_TRUE(staged.ok()) << staged.status().to_string();
  ASSERT_TRUE((*staged)->commit().ok());
  EXPECT_TRUE(same(held, run_.weights[2]));
  EXPECT_TRUE(target->state().valid);
  EXPECT_EQ(target->state().digest, digest_of(run_.weights[2]));
  EXPECT_EQ((*staged)->undo().code(), StatusCode::kUnsupported);
  EXPECT_EQ(target->state().id.version, 2U) << "and stays";
  EXPECT_EQ(target->stage(chain(run_.anchor(1))).status().code(), StatusCode::kWrongBase)
      << "never back";
}

TEST_P(FullKindTest, IsRefusedBeforeItTouchesAnythingWhereTheDigestIsNotItsOwn) {
  Publication anchor = run_.anchor(2, GetParam().layout);
  anchor.manifest.digest.lanes[1] ^= 1;
  Memory memory(run_);
  EXPECT_EQ(memory.refusal(chain(anchor)), StatusCode::kMismatch);
  EXPECT_TRUE(same(memory.held, run_.weights[0]));
}

TEST_P(FullKindTest, HealsADamagedCheckpoint) {
  TempDir dir(TempDir::Where::kMemory);
  const std::string copy = dir.file("copy");
  write_checkpoint(copy, run_.weights[0]);
  {
    auto target = make_checkpoint_target(posix_file_system(), copy, 1);
    ASSERT_TRUE(
        (*(*target)->stage(chain(run_.step(1), run_.step(2), run_.step(3))))->commit().ok());
  }
  Weights damaged = run_.weights[3];
  damaged["model.norm.weight"].bytes[5] ^= std::byte{4};
  write_checkpoint(dir.file("damaged"), damaged);
  std::filesystem::copy_file(dir.file("damaged") + "/model.safetensors",
                             copy + "/model.safetensors",
                             std::filesystem::copy_options::overwrite_existing);
  auto target = make_checkpoint_target(posix_file_system(), copy, 1);
  ASSERT_TRUE(target.ok()) << target.status().to_string();
  EXPECT_FALSE((*target)->state().valid);
  EXPECT_EQ((*target)->stage(chain(run_.step(4))).status().code(), StatusCode::kWrongBase);
  auto staged = (*target)->stage(chain(run_.anchor(2, GetParam().layout)));
  ASSERT_TRUE(staged.ok()) << staged.status().to_string();
  ASSERT_TRUE((*staged)->commit().ok());
  EXPECT_TRUE((*target)->state().valid);
  EXPECT_TRUE(holds(copy, run_.weights[2]));
}

INSTANTIATE_TEST_SUITE_P(Kinds, FullKindTest,
                         ::testing::Values(Kind{DirectoryLayout::kFrames, Encoding::kFull},
                                           Kind{DirectoryLayout::kHfDelta, Encoding::kFull}),
                         name_of);

class RefusalTest : public ::testing::Test {
 protected:
  void TearDown() override {
    EXPECT_TRUE(same(memory_.held, run_.weights[0]));
    EXPECT_EQ(memory_.target->state().digest, digest_of(run_.weights[0]));
  }
  PublishedRun run_{random_weights(1, 200)};
  Memory memory_{run_};
};

TEST_F(RefusalTest, OfAGap) {
  EXPECT_EQ(memory_.refusal(chain(run_.step(2))), StatusCode::kWrongBase);
  EXPECT_EQ(memory_.refusal(chain(run_.step(1), run_.step(3))), StatusCode::kWrongBase);
  EXPECT_EQ(memory_.refusal({}), StatusCode::kInvalidArgument);
}

TEST_F(RefusalTest, OfAnotherBase) {
  PublishedRun other(random_weights(2, 200), run_.run);
  EXPECT_EQ(memory_.refusal(chain(other.step(1))), StatusCode::kWrongBase);
  EXPECT_EQ(memory_.refusal(chain(run_.step(1), other.step(2))), StatusCode::kWrongBase);
}

TEST_F(RefusalTest, OfAnotherRun) {
  PublishedRun other(run_.weights[0], {5, 6});
  EXPECT_EQ(memory_.refusal(chain(run_.step(1), other.step(2))), StatusCode::kWrongRun);
  Weights held = run_.weights[0];
  const auto known = Memory::make(run_, held, VersionId{run_.run, 0}, 1);
  EXPECT_EQ(known->stage(chain(other.step(1))).status().code(), StatusCode::kWrongRun);
}

TEST_F(RefusalTest, OfAnotherLayout) {
  Weights more = run_.weights[0];
  more["model.extra"] = more["model.norm.weight"];
  PublishedRun other(more, run_.run);
  EXPECT_EQ(memory_.refusal(chain(other.step(1))), StatusCode::kWrongLayout);
}

TEST_F(RefusalTest, OfAFullVersionInAChain) {
  EXPECT_EQ(
      memory_.refusal(chain(run_.step(1), run_.step(2, DirectoryLayout::kFrames, Encoding::kFull))),
      StatusCode::kInvalidArgument);
}

TEST_F(RefusalTest, OfDamagedMissingAndForeignFrames) {
  const Publication good = run_.step(1);
  ASSERT_GT(good.parts.size(), 2U);
  const std::string second = frame_file_name(0, 1);

  Publication flipped = good;
  flipped.parts[second][flipped.parts[second].size() / 2] ^= std::byte{1};
  EXPECT_EQ(memory_.refusal(chain(flipped)), StatusCode::kCorrupt);

  Publication missing = good;
  missing.parts.erase(second);
  missing.list_parts();
  EXPECT_EQ(memory_.refusal(chain(missing)), StatusCode::kCorrupt);

  Publication renamed = good;  // the same frame twice
  renamed.parts[second] = renamed.parts[frame_file_name(0, 0)];
  renamed.list_parts();
  EXPECT_EQ(memory_.refusal(chain(renamed)), StatusCode::kCorrupt);

  Publication foreign = good;  // a frame of another version
  foreign.parts[second] = run_.step(2).parts.at(second);
  foreign.list_parts();
  EXPECT_EQ(memory_.refusal(chain(foreign)), StatusCode::kCorrupt);

  Publication other_encoding = good;
  other_encoding.manifest.encoding = Encoding::kIndices;
  EXPECT_EQ(memory_.refusal(chain(other_encoding)), StatusCode::kCorrupt);
}

// Frames of one tensor, with the `positions` and the `ranks` of each frame, valid or not.
Publication frames_of(PublishedRun& run, const std::vector<std::vector<std::uint32_t>>& positions,
                      const std::vector<std::uint32_t>& ranks) {
  Publication made = run.step(1);
  made.parts.clear();
  const std::uint32_t tensor = *run.layout.find("model.norm.weight");
  std::map<std::uint32_t, std::uint32_t> next;
  for (std::size_t i = 0; i < positions.size(); ++i) {
    BucketBuilder builder(run.layout, Encoding::kDeltas);
    const std::vector<std::byte> values(positions[i].size() * 2, std::byte{7});
    EXPECT_TRUE(builder.add({tensor, 2, 0, positions[i], values.data()}).ok());
    const std::uint32_t index = next[ranks[i]]++;
    const FrameContext context{{run.run, 1},      0,        run.layout.signature(),
                               Encoding::kDeltas, ranks[i], index};
    EXPECT_TRUE(
        encode_frame(context, builder.view(), made.parts[frame_file_name(ranks[i], index)]).ok());
  }
  made.list_parts();
  return made;
}

TEST_F(RefusalTest, OfATensorPublishedByTwoRanks) {
  const auto staged = memory_.target->stage(chain(frames_of(run_, {{1, 2}, {3, 4}}, {0, 1})));
  EXPECT_EQ(staged.status().code(), StatusCode::kCorrupt);
  EXPECT_NE(staged.status().message().find("rank 0"), std::string_view::npos)
      << staged.status().to_string();
}

TEST_F(RefusalTest, OfAUnitThatIsThereTwice) {
  EXPECT_EQ(memory_.refusal(chain(frames_of(run_, {{1, 4}, {4, 5}}, {0, 0}))),
            StatusCode::kCorrupt);
  EXPECT_EQ(memory_.refusal(chain(frames_of(run_, {{5, 6}, {1, 2}}, {0, 0}))),
            StatusCode::kCorrupt);
}

TEST_F(RefusalTest, OfAFullVersionWithAHole) {
  Publication anchor = run_.anchor(0);
  anchor.id.version = anchor.manifest.id.version = 1;
  Publication full = run_.step(1, DirectoryLayout::kFrames, Encoding::kFull);
  full.parts.erase(std::prev(full.parts.end()));  // the last third of the last tensor
  full.list_parts();
  EXPECT_EQ(memory_.refusal(chain(full)), StatusCode::kCorrupt);
}

TEST(MemoryTargetTest, NoticesAForeignWrite) {
  PublishedRun run(random_weights(1, 200));
  Memory memory(run);
  (void)run.step(1);
  const std::string name = "model.embed.weight";
  std::size_t at = 0;  // a byte that the step changes
  while (run.weights[1].at(name).bytes[at] == run.weights[0].at(name).bytes[at]) ++at;
  const auto staged = memory.target->stage(chain(run.step(1)));
  ASSERT_TRUE(staged.ok());
  memory.held[name].bytes[at] ^= std::byte{0x40};
  const Weights found = memory.held;
  EXPECT_EQ((*staged)->commit().status().code(), StatusCode::kMismatch);
  EXPECT_TRUE(same(memory.held, found)) << "as it was found";
}

// What was written of a tensor before the commit met the foreign unit is undone, too.
TEST(MemoryTargetTest, UndoesTheBeginningOfATensorWithAForeignWriteAtItsEnd) {
  PublishedRun run(random_weights(1, 20'000));
  Memory memory(run);
  const Publication step = run.step(1);
  ASSERT_GT(step.manifest.changed_units, 2000U);
  const std::string name = "model.embed.weight";
  const auto& before = run.weights[0].at(name).bytes;
  const auto& after = run.weights[1].at(name).bytes;
  std::size_t at = after.size() - 1;  // the last byte that the step changes
  while (after[at] == before[at]) --at;
  const auto staged = memory.target->stage(chain(step));
  ASSERT_TRUE(staged.ok());
  memory.held[name].bytes[at] ^= std::byte{0x40};
  const Weights found = memory.held;
  EXPECT_EQ((*staged)->commit().status().code(), StatusCode::kMismatch);
  EXPECT_TRUE(same(memory.held, found));
}

TEST(MemoryTargetTest, CommitsOnlyWhatWasStagedForItsVersion) {
  PublishedRun run(random_weights(1, 200));
  Memory memory(run);
  const auto first = memory.target->stage(chain(run.step(1)));
  const auto second = memory.target->stage(chain(run.step(1), run.step(2)));
  ASSERT_TRUE((*second)->commit().ok());
  EXPECT_EQ((*first)->commit().status().code(), StatusCode::kWrongBase);
  EXPECT_TRUE(same(memory.held, run.weights[2]));
  EXPECT_FALSE((*first)->undo().ok());
}

TEST(MemoryTargetTest, GivesTheSameBitsOnManyThreads) {
  PublishedRun run(random_weights(1, 30'000));  // enough changes for several threads
  Memory one(run, 1), four(run, 4);
  const Publication step = run.step(1, DirectoryLayout::kFrames, Encoding::kDeltasZstd);
  const Publication next = run.step(2, DirectoryLayout::kHfDelta, Encoding::kXor);
  for (Memory* memory : {&one, &four}) {
    const Status status = memory->apply(chain(step, next));  // two kinds in one fold
    ASSERT_TRUE(status.ok()) << status.to_string();
    EXPECT_TRUE(same(memory->held, run.weights[2]));
  }
  EXPECT_EQ(one.target->state(), four.target->state());
}

TEST(MemoryTargetTest, WantsAPointerPerTensor) {
  PublishedRun run(random_weights(1, 4));
  EXPECT_EQ(make_memory_target(run.layout, {}, std::nullopt, 1).status().code(),
            StatusCode::kInvalidArgument);
}

TEST(OwnedTargetTest, StartsFromACheckpoint) {
  TempDir dir(TempDir::Where::kMemory);
  PublishedRun run(random_weights(1, 200));
  write_checkpoint(dir.file("base"), run.weights[0], 2);
  const auto target = make_owned_target(posix_file_system(), dir.file("base"), 2);
  ASSERT_TRUE(target.ok()) << target.status().to_string();
  EXPECT_EQ((*target)->state(), (TargetState{{}, digest_of(run.weights[0]), true, false}));
  ASSERT_TRUE((*(*target)->stage(chain(run.step(1))))->commit().ok());
  for (std::size_t i = 0; i < run.layout.size(); ++i) {
    const auto bytes = (*target)->tensor(i);
    const auto& expected = run.weights[1].at(run.layout[i].name).bytes;
    EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), expected.begin(), expected.end()));
  }
}

TEST(OwnedTargetTest, LearnsItsLayout) {
  PublishedRun run(random_weights(1, 200));
  const auto target = make_owned_target(posix_file_system(), std::nullopt, 1);
  ASSERT_TRUE(target.ok());
  EXPECT_EQ((*target)->layout(), nullptr);
  EXPECT_FALSE((*target)->stage(chain(run.anchor(0))).ok());
  ASSERT_TRUE((*target)->adopt_layout(run.layout).ok());
  EXPECT_FALSE((*target)->state().valid);
  ASSERT_TRUE((*(*target)->stage(chain(run.anchor(0))))->commit().ok());
  EXPECT_EQ((*target)->state().digest, digest_of(run.weights[0]));
  const WeightLayout other = layout_of(random_weights(1, 7));
  EXPECT_EQ((*target)->adopt_layout(other).code(), StatusCode::kWrongLayout);
}

// Each tensor of these weights at its own place.
MappedParts parts_of(Weights& weights) {
  MappedParts parts;
  parts.layout = layout_of(weights);
  for (std::uint32_t i = 0; i < parts.layout.size(); ++i) {
    const std::uint64_t units = parts.layout[i].units();
    if (units == 0) continue;
    WeightMap map;
    map.tensor = i;
    map.data = weights.at(parts.layout[i].name).bytes.data();
    map.unit_bytes = unit_bytes(parts.layout[i].dtype);
    map.map = *StridedMap::make({0, {units}, {1}}, units, {0, {units}, {1}}, units);
    parts.maps.push_back(std::move(map));
  }
  return parts;
}

// The engine moved its tensors, and maps all of them again, not only those of the run.
TEST(TakeOver, TensorsOfTheRunBeforeAreKnownByNameAfterTheEngineMovedThem) {
  Weights held = random_weights(1), published = held, next = held;
  published.erase(published.begin());
  const std::string last = std::prev(next.end())->first;
  next.erase(last);
  PublishedRun run(published);
  MappedOptions base{VersionId{}, digest_of(held), 1};
  for (const auto& [name, tensor] : held)
    base.initial_tensors.push_back(digest_of({{name, tensor}}));
  auto target = make_mapped_target(parts_of(held), base);
  ASSERT_TRUE(target.ok()) << target.status().to_string();
  ASSERT_TRUE((*target)->adopt_layout(run.layout).ok());
  auto staged = (*target)->stage(chain(run.step(1, DirectoryLayout::kFrames, Encoding::kFull)));
  ASSERT_TRUE(staged.ok()) << staged.status().to_string();
  ASSERT_TRUE((*staged)->commit().ok());
  staged->reset();
  ASSERT_TRUE(
      (*target)->replace(parts_of(held), MappedOptions{std::nullopt, std::nullopt, 1}).ok());
  const Status refused = (*target)->admit(Hash128{7, 7}, layout_of(next));
  EXPECT_EQ(refused.code(), StatusCode::kWrongLayout) << refused.to_string();
  EXPECT_NE(refused.message().find(last), std::string_view::npos) << refused.to_string();
}

}  // namespace
}  // namespace driftless::testing
