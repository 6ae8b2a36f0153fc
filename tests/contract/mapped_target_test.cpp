// SPDX-License-Identifier: Apache-2.0
// A module's parameters follow a run wherever they lie: transposed, cut into columns, fused,
// converted, stored twice. Each commit writes all of them or none, and can be undone.
#include "plugin/targets/mapped_target.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>

#include "plugin/targets/tensor_changes.h"
#include "support/published_run.h"
#include "support/weight_memory_under_test.h"

namespace driftless::testing {
namespace {

struct Parameter {
  std::byte* data = nullptr;
  std::size_t bytes = 0;
};

// Records its calls.
class NotingWriter final : public ExternalWriter {
 public:
  Status check(bool /*paused*/) override { return {}; }
  Status stage(std::shared_ptr<const TensorChanges> given) override {
    changes = std::move(given);
    calls += "stage ";
    return {};
  }
  Status commit() override {
    calls += "commit ";
    return fail ? error(StatusCode::kInternal, "the loader breaks") : Status();
  }
  Status undo() override {
    calls += "undo ";
    return undo_fails ? error(StatusCode::kInternal, "and the way back") : Status();
  }
  void drop() override {
    calls += "drop ";
    changes.reset();
  }
  Status written() override {
    calls += "written ";
    return breaks-- > 0 ? error(StatusCode::kInternal, "what is derived breaks") : Status();
  }

  std::shared_ptr<const TensorChanges> changes;
  std::string calls;
  bool fail = false, undo_fails = false;
  int breaks = 0;  // how often written() fails
};

class ModuleTest : public ::testing::Test {
 protected:
  ModuleTest() {
    add("model.embed.weight", "embed", 2, {0, {48, 256}, {1, 48}}, {0, {48, 256}, {256, 1}});
    add("model.layers.0.up.weight", "left", 2, {0, {64, 40}, {96, 1}}, {0, {64, 40}, {40, 1}});
    add("model.layers.0.up.weight", "right", 2, {40, {64, 56}, {96, 1}}, {0, {64, 56}, {56, 1}});
    add("model.layers.0.norm.weight", "norm", 4, {0, {37}, {1}}, {0, {37}, {1}});
    add("model.layers.0.scale", "fused", 1, {0, {64, 31}, {31, 1}}, {7, {64, 31}, {50, 1}});
    add("model.layers.0.counter", "counter", 8, {0, {5}, {1}}, {0, {5}, {1}});
    add("model.norm.weight", "tied", 2, {0, {96}, {1}}, {0, {96}, {1}});
    add("model.norm.weight", "wide", 4, {0, {96}, {1}}, {0, {96}, {1}}, ValueCast::kBF16ToF32);
    add("model.embed.weight", "wide rows", 4, {480, {10, 48}, {48, 1}}, {9, {10, 48}, {48, 1}},
        ValueCast::kBF16ToF32);
    load(run_.weights[0]);
  }

  void add(const std::string& tensor, const std::string& name, unsigned width,
           const StridedView& source, const StridedView& target,
           ValueCast cast = ValueCast::kNone) {
    constexpr std::uint64_t kUnits = 256 * 48;  // large enough for each
    WeightMap made;
    made.tensor = *run_.layout.find(tensor);
    made.unit_bytes = width;
    made.cast = cast;
    made.parameter = name;
    const auto map = StridedMap::make(source, run_.layout[made.tensor].units(), target, kUnits);
    ASSERT_TRUE(map.ok()) << name << ": " << map.status().to_string();
    made.map = *map;
    Parameter& parameter = parameters_[name];
    parameter.bytes = kUnits * width;
    made.data = parameter.data = memory_->allocate(parameter.bytes);
    maps_.push_back(made);
  }

  // The content of each parameter for these weights, computed the simple way.
  std::map<std::string, std::vector<std::byte>> expected(const Weights& weights) const {
    std::map<std::string, std::vector<std::byte>> all;
    for (const WeightMap& map : maps_) {
      std::vector<std::byte>& held = all[map.parameter];
      held.resize(parameters_.at(map.parameter).bytes);
      const TestTensor& tensor = weights.at(run_.layout[map.tensor].name);
      const unsigned from = source_bytes(map.cast, map.unit_bytes);
      for (std::uint64_t unit = 0; unit < tensor.bytes.size() / from; ++unit) {
        const std::uint64_t at = map.map.target_of(unit);
        if (at == StridedMap::kOutside) continue;
        // Little-endian: a widened bfloat16 has two zero bytes, then its own.
        std::memcpy(held.data() + at * map.unit_bytes + (map.unit_bytes - from),
                    tensor.bytes.data() + unit * from, from);
      }
    }
    return all;
  }
  void load(const Weights& weights) {
    for (const auto& [name, bytes] : expected(weights)) {
      memory_->write(parameters_.at(name).data, bytes);
    }
  }
  [[nodiscard]] bool holds(const Weights& weights) {
    for (const auto& [name, bytes] : expected(weights)) {
      if (memory_->read(parameters_.at(name).data, bytes.size()) != bytes) return false;
    }
    return true;
  }

  void leave_up_to_the_writer() {
    writer_ = std::make_shared<NotingWriter>();
    external_ = {"model.layers.0.up.weight"};
    std::erase_if(maps_, [](const WeightMap& map) {
      return map.parameter == "left" || map.parameter == "right";
    });
  }

  // Commits from weights 0 to 1 and undoes it, with the writer.
  void commits_and_goes_back(std::unique_ptr<StagedChange>& staged) {
    ASSERT_TRUE(staged->commit().ok());
    EXPECT_TRUE(holds(run_.weights[1]));
    ASSERT_TRUE(staged->undo().ok());
    EXPECT_TRUE(holds(run_.weights[0]));
    staged.reset();
    EXPECT_EQ(writer_->calls, "stage commit written undo written drop ");
  }

  MappedParts parts() const {
    MappedParts parts;
    parts.layout = run_.layout;
    parts.maps = maps_;
    parts.memory = memory_->memory();
    parts.writer = writer_;
    for (const std::string& name : external_) parts.external.push_back(*run_.layout.find(name));
    for (const std::string& name : refused_) {
      parts.refused.emplace_back(*run_.layout.find(name), "repacked");
    }
    return parts;
  }
  std::unique_ptr<MappedTarget> open(MappedOptions options = {}) {
    options.threads = 2;
    auto made = make_mapped_target(parts(), options);
    EXPECT_TRUE(made.ok()) << made.status().to_string();
    return made.ok() ? std::move(*made) : nullptr;
  }
  std::unique_ptr<MappedTarget> open_base() {
    return open({VersionId{}, digest_of(run_.weights[0]), 2});
  }
  static std::vector<FetchedVersion> chain(const std::vector<Publication>& publications) {
    std::vector<FetchedVersion> versions;
    for (const Publication& publication : publications) versions.push_back(publication.fetched());
    return versions;
  }

  PublishedRun run_{random_weights(3)};
  std::unique_ptr<TestMemory> memory_ = test_memory();
  std::map<std::string, Parameter> parameters_;
  std::vector<WeightMap> maps_;
  std::vector<std::string> external_, refused_;
  std::shared_ptr<NotingWriter> writer_;
};

TEST_F(ModuleTest, FollowsStepsAndFoldsAndGoesBack) {
  const auto target = open_base();
  ASSERT_TRUE(target && target->proven());
  const Publication first = run_.step(1), second = run_.step(2), third = run_.step(3);
  auto staged = target->stage(chain({first}));
  ASSERT_TRUE(staged.ok()) << staged.status().to_string();
  EXPECT_TRUE(holds(run_.weights[0])) << "staging touched the parameters";
  ASSERT_TRUE((*staged)->commit().ok());
  EXPECT_TRUE(holds(run_.weights[1]));
  EXPECT_EQ(target->state().digest, digest_of(run_.weights[1]));
  staged->reset();
  staged = target->stage(chain({second, third}));
  ASSERT_TRUE(staged.ok()) << staged.status().to_string();
  ASSERT_TRUE((*staged)->commit().ok());
  EXPECT_TRUE(holds(run_.weights[3]));
  ASSERT_TRUE((*staged)->undo().ok());
  EXPECT_TRUE(holds(run_.weights[1]));
  EXPECT_EQ(target->state().id.version, 1U);
}

TEST_F(ModuleTest, AForeignWriteIsFoundAndNoVersionIsHeld) {
  const Publication first = run_.step(1);
  for (const WeightMap& map : maps_) {
    const auto target = open_base();
    auto staged = target->stage(chain({first}));
    ASSERT_TRUE(staged.ok()) << staged.status().to_string();
    const TestTensor& before = run_.weights[0].at(run_.layout[map.tensor].name);
    const TestTensor& after = run_.weights[1].at(run_.layout[map.tensor].name);
    const unsigned from = source_bytes(map.cast, map.unit_bytes);
    std::uint64_t at = StridedMap::kOutside;  // a unit that changes
    for (std::uint64_t unit = 0; unit < before.bytes.size() / from; ++unit) {
      if (std::memcmp(before.bytes.data() + unit * from, after.bytes.data() + unit * from, from) !=
          0) {
        at = std::min(at, map.map.target_of(unit));
      }
    }
    if (at == StridedMap::kOutside) continue;  // no change goes to this parameter
    const Parameter& parameter = parameters_.at(map.parameter);
    const std::vector<std::byte> held = memory_->read(parameter.data, parameter.bytes);
    std::vector<std::byte> other = held;
    other[at * map.unit_bytes] ^= std::byte{1};
    memory_->write(parameter.data, other);
    const Status status = (*staged)->commit().status();
    EXPECT_EQ(status.code(), StatusCode::kMismatch) << map.parameter;
    EXPECT_NE(status.message().find(map.parameter), std::string_view::npos) << status.to_string();
    EXPECT_EQ(memory_->read(parameter.data, parameter.bytes), other);
    EXPECT_FALSE(target->state().valid) << map.parameter;
    memory_->write(parameter.data, held);
    EXPECT_TRUE(holds(run_.weights[0])) << map.parameter;
  }
}

TEST_F(ModuleTest, TheDigestMayBeOfWhatIsHeld) {
  MappedOptions options;
  options.initial = VersionId{};
  options.digest_of_held = true;
  const std::uint32_t up = *run_.layout.find("model.layers.0.up.weight");
  std::erase_if(maps_, [&](const WeightMap& map) { return map.tensor == up; });
  const auto target = open(options);
  ASSERT_TRUE(target && target->state().partial);
  const Publication first = run_.step(1);
  auto staged = target->stage(chain({first}));
  ASSERT_TRUE(staged.ok()) << staged.status().to_string();
  ASSERT_TRUE((*staged)->commit().ok());
  Weights present = run_.weights[1];
  present.erase("model.layers.0.up.weight");
  EXPECT_EQ(target->state().digest, digest_of(present));
}

TEST_F(ModuleTest, OfATensorThatIsHeldInPartThereIsNoDigest) {
  std::erase_if(maps_, [](const WeightMap& map) { return map.parameter == "right"; });
  MappedOptions options;
  options.digest_of_held = true;
  const auto made =
      make_mapped_target({run_.layout, maps_, {}, {}, {}, memory_->memory()}, options);
  ASSERT_EQ(made.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(made.status().message().find("up.weight"), std::string_view::npos);
}

TEST_F(ModuleTest, AFullVersionGoesThroughTheMaps) {
  static_cast<void>(run_.step(1));
  const auto target = open();  // holds no version yet
  auto staged = target->stage(chain({run_.anchor(1)}));
  ASSERT_TRUE(staged.ok()) << staged.status().to_string();
  ASSERT_TRUE((*staged)->commit().ok());
  EXPECT_TRUE(holds(run_.weights[1]));
  EXPECT_EQ((*staged)->undo().code(), StatusCode::kUnsupported);
  EXPECT_EQ(target->state().digest, digest_of(run_.weights[1]));
}

TEST_F(ModuleTest, AnAnchorWritesWhatDiffersAndGoesBack) {
  static_cast<void>(run_.step(1));
  static_cast<void>(run_.step(2));
  const auto target = open_base();
  auto staged = target->stage(chain({run_.anchor(2)}));
  ASSERT_TRUE(staged.ok()) << staged.status().to_string();
  EXPECT_TRUE(holds(run_.weights[0])) << "staging touched the parameters";
  const auto report = (*staged)->commit();
  ASSERT_TRUE(report.ok()) << report.status().to_string();
  EXPECT_TRUE(holds(run_.weights[2]));
  EXPECT_EQ(target->state().digest, digest_of(run_.weights[2]));
  EXPECT_GT(report->changed_units, 0U);
  EXPECT_LT(report->changed_units, 48U * 256U / 8);
  ASSERT_TRUE((*staged)->undo().ok());
  EXPECT_TRUE(holds(run_.weights[0]));
  EXPECT_EQ(target->state().id.version, 0U);
  EXPECT_EQ(target->state().digest, digest_of(run_.weights[0]));
}

TEST_F(ModuleTest, AnAnchorReplacesForeignWrites) {
  static_cast<void>(run_.step(1));
  for (const WeightMap& map : maps_) {
    load(run_.weights[0]);
    const auto target = open_base();
    const Parameter& parameter = parameters_.at(map.parameter);
    std::vector<std::byte> other = memory_->read(parameter.data, parameter.bytes);
    other[map.map.target_offset * map.unit_bytes] ^= std::byte{1};
    memory_->write(parameter.data, other);
    auto staged = target->stage(chain({run_.anchor(1)}));
    ASSERT_TRUE(staged.ok()) << staged.status().to_string();
    ASSERT_TRUE((*staged)->commit().ok());
    EXPECT_TRUE(holds(run_.weights[1])) << map.parameter;
  }
}

TEST_F(ModuleTest, AnAnchorThatDiffersEverywhereGoesBackToo) {
  static_cast<void>(run_.step(1));
  const Weights other = random_weights(99);
  load(other);
  const auto target = open({VersionId{}, digest_of(other), 2});
  auto staged = target->stage(chain({run_.anchor(1)}));
  ASSERT_TRUE(staged.ok()) << staged.status().to_string();
  EXPECT_TRUE(holds(other)) << "staging touched the parameters";
  const auto report = (*staged)->commit();
  ASSERT_TRUE(report.ok()) << report.status().to_string();
  EXPECT_TRUE(holds(run_.weights[1]));
  // Memory between the rows of this parameter belongs to other code.
  const Parameter& fused = parameters_.at("fused");
  std::vector<std::byte> bytes = memory_->read(fused.data, fused.bytes);
  ASSERT_EQ(bytes[7 + 31], std::byte{0});
  bytes[7 + 31] = std::byte{77};
  memory_->write(fused.data, bytes);
  ASSERT_TRUE((*staged)->undo().ok());
  bytes = memory_->read(fused.data, fused.bytes);
  EXPECT_EQ(bytes[7 + 31], std::byte{77});
  bytes[7 + 31] = std::byte{0};
  memory_->write(fused.data, bytes);
  EXPECT_TRUE(holds(other));
  EXPECT_EQ(target->state().id.version, 0U);
  EXPECT_EQ((*staged)->undo().code(), StatusCode::kInvalidArgument);
}

// The old values that an anchor keeps include the foreign write.
TEST_F(ModuleTest, UndoingAnAnchorAfterAForeignWriteHoldsNoVersion) {
  const std::uint64_t version = run_.step(1).manifest.id.version;
  for (const bool everywhere : {false, true}) {
    load(run_.weights[0]);
    const auto target = open_base();
    Weights other = everywhere ? random_weights(99) : run_.weights[0];
    if (!everywhere) other.at("model.norm.weight").bytes[4] ^= std::byte{1};
    load(other);
    auto staged = target->stage(chain({run_.anchor(version)}));
    ASSERT_TRUE(staged.ok()) << staged.status().to_string();
    ASSERT_TRUE((*staged)->commit().ok());
    EXPECT_EQ((*staged)->undo().code(), StatusCode::kMismatch) << "everywhere: " << everywhere;
    EXPECT_FALSE(target->state().valid) << "it is not version 0";
    EXPECT_TRUE(holds(other));
    staged->reset();
    staged = target->stage(chain({run_.anchor(version)}));
    ASSERT_TRUE(staged.ok()) << staged.status().to_string();
    ASSERT_TRUE((*staged)->commit().ok());
    EXPECT_TRUE(holds(run_.weights[1]) && target->state().valid);
  }
}

TEST_F(ModuleTest, AWriterThatFailsAndCannotGoBackLeavesNoVersion) {
  leave_up_to_the_writer();
  const auto target = open_base();
  const Publication first = run_.step(1);
  auto staged = target->stage(chain({first}));
  ASSERT_TRUE(staged.ok()) << staged.status().to_string();
  writer_->fail = writer_->undo_fails = true;
  const Status failed = (*staged)->commit().status();
  EXPECT_EQ(failed.code(), StatusCode::kInternal);
  EXPECT_NE(failed.message().find("and hold no version"), std::string_view::npos)
      << failed.to_string();
  EXPECT_FALSE(target->state().valid);
  EXPECT_EQ(writer_->calls, "stage commit undo ");
  staged->reset();
  writer_->fail = writer_->undo_fails = false;
  EXPECT_EQ(target->stage(chain({first})).status().code(), StatusCode::kWrongBase);
  staged = target->stage(chain({run_.anchor(1)}));
  ASSERT_TRUE(staged.ok()) << staged.status().to_string();
  ASSERT_TRUE((*staged)->commit().ok());
  EXPECT_TRUE(holds(run_.weights[1]) && target->state().valid);
}

TEST_F(ModuleTest, TheWriterIsUndoneWithAnAnchorToo) {
  leave_up_to_the_writer();
  static_cast<void>(run_.step(1));
  const auto target = open_base();
  auto staged = target->stage(chain({run_.anchor(1)}));
  ASSERT_TRUE(staged.ok()) << staged.status().to_string();
  EXPECT_TRUE(writer_->changes->whole());
  commits_and_goes_back(*staged);
}

TEST_F(ModuleTest, TheWriterGoesFirstAndIsUndoneWithTheRest) {
  leave_up_to_the_writer();
  const auto target = open_base();
  EXPECT_FALSE(target->proven());
  const Publication first = run_.step(1);
  auto staged = target->stage(chain({first}));
  ASSERT_TRUE(staged.ok()) << staged.status().to_string();
  ASSERT_EQ(writer_->changes->tensors().size(), 1U);
  const std::uint32_t tensor = writer_->changes->tensors()[0];
  std::vector<std::byte> patched = run_.weights[0].at("model.layers.0.up.weight").bytes;
  writer_->changes->write(tensor, patched.data(), std::nullopt);
  EXPECT_EQ(patched, run_.weights[1].at("model.layers.0.up.weight").bytes);
  writer_->fail = true;
  EXPECT_EQ((*staged)->commit().status().code(), StatusCode::kInternal);
  EXPECT_TRUE(holds(run_.weights[0]));
  staged->reset();
  EXPECT_TRUE(target->state().valid);
  EXPECT_EQ(writer_->calls, "stage commit undo drop ");

  writer_->fail = false;
  writer_->calls.clear();
  staged = target->stage(chain({first}));
  commits_and_goes_back(*staged);
}

// The engine's derived tensors are computed after each commit, and after each undo.
TEST_F(ModuleTest, ACommitWhoseDerivedTensorsBreakIsTakenBack) {
  leave_up_to_the_writer();
  const auto target = open_base();
  const Publication first = run_.step(1);
  auto staged = target->stage(chain({first}));
  ASSERT_TRUE(staged.ok()) << staged.status().to_string();
  writer_->breaks = 1;
  EXPECT_EQ((*staged)->commit().status().code(), StatusCode::kInternal);
  EXPECT_TRUE(holds(run_.weights[0]) && target->state().valid);
  EXPECT_EQ(target->state().id.version, 0U);
  EXPECT_EQ(writer_->calls, "stage commit written undo written ");
  staged->reset();
  staged = target->stage(chain({first}));
  writer_->breaks = 2;
  EXPECT_EQ((*staged)->commit().status().code(), StatusCode::kInternal);
  EXPECT_TRUE(holds(run_.weights[0]));
  EXPECT_FALSE(target->state().valid) << "what is derived is of no version";
}

TEST_F(ModuleTest, OtherWeightsTakeThePlaceOfTheseAndWhatWasStagedIsRefused) {
  const auto target = open_base();
  const Publication first = run_.step(1), second = run_.step(2);
  auto before = target->stage(chain({first}));
  ASSERT_TRUE(before.ok()) << before.status().to_string();
  ASSERT_TRUE((*before)->commit().ok());
  auto staged = target->stage(chain({second}));
  ASSERT_TRUE(staged.ok()) << staged.status().to_string();
  for (WeightMap& map : maps_) map.data = memory_->allocate(parameters_[map.parameter].bytes);
  for (const WeightMap& map : maps_) parameters_[map.parameter].data = map.data;
  load(run_.weights[1]);
  const MappedOptions options{VersionId{first.manifest.id}, digest_of(run_.weights[1]), 2};
  ASSERT_TRUE(target->replace(parts(), options).ok());
  EXPECT_EQ((*staged)->commit().status().code(), StatusCode::kBusy);
  EXPECT_EQ((*before)->undo().code(), StatusCode::kBusy);
  EXPECT_TRUE(holds(run_.weights[1]));
  staged = target->stage(chain({second}));
  ASSERT_TRUE(staged.ok()) << staged.status().to_string();
  ASSERT_TRUE((*staged)->commit().ok());
  EXPECT_TRUE(holds(run_.weights[2]));
  MappedParts wrong = parts();
  wrong.maps.push_back(wrong.maps.front());
  EXPECT_EQ(target->replace(std::move(wrong), options).code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE((*staged)->undo().ok()) << "they are the same as before";
}

// Changes of a tensor's own bits go to the places of these bits, in slices, too.
TEST_F(ModuleTest, XorAndOverwriteGoThroughTheMapsOfASlice) {
  std::erase_if(maps_, [](const WeightMap& map) { return map.parameter == "right"; });
  for (const Encoding encoding : {Encoding::kXor, Encoding::kOverwrite}) {
    load(run_.weights[0]);
    const auto target = open_base();
    auto staged =
        target->stage(chain({run_.step(1, DirectoryLayout::kHfDelta, encoding), run_.step(2)}));
    ASSERT_TRUE(staged.ok()) << staged.status().to_string();
    ASSERT_TRUE((*staged)->commit().ok());
    EXPECT_TRUE(holds(run_.weights[2]));
    ASSERT_TRUE((*staged)->undo().ok());
    EXPECT_TRUE(holds(run_.weights[0]));
  }
}

TEST_F(ModuleTest, CompactGoesThroughTheMapsAndIsRefusedOfHalfABlock) {
  const auto staged = open_base()->stage(
      chain({run_.step(1, DirectoryLayout::kFrames, Encoding::kCompact), run_.step(2),
             run_.step(3, DirectoryLayout::kFrames, Encoding::kCompact)}));
  ASSERT_TRUE(staged.ok()) << staged.status().to_string();
  ASSERT_TRUE((*staged)->commit().ok());
  EXPECT_TRUE(holds(run_.weights[3]));
  load(run_.weights[0]);
  std::erase_if(maps_, [](const WeightMap& map) { return map.parameter == "right"; });
  const auto refused =
      open_base()->stage(chain({run_.step(1, DirectoryLayout::kFrames, Encoding::kCompact)}));
  EXPECT_EQ(refused.status().code(), StatusCode::kUnsupported) << refused.status().to_string();
  EXPECT_NE(refused.status().message().find("not all held"), std::string_view::npos);
  EXPECT_TRUE(holds(run_.weights[0]));
}

class OldBitsTest : public ModuleTest, public ::testing::WithParamInterface<Encoding> {};
INSTANTIATE_TEST_SUITE_P(, OldBitsTest, ::testing::Values(Encoding::kXor, Encoding::kCompact));

TEST_P(OldBitsTest, IsRefusedForTensorsThatAreConvertedOrWrittenByTheLoader) {
  const bool xored = GetParam() == Encoding::kXor;
  const Publication step =
      run_.step(1, xored ? DirectoryLayout::kHfDelta : DirectoryLayout::kFrames, GetParam());
  const auto refusal = [&] {
    const auto staged = open_base()->stage(chain({step}));
    EXPECT_EQ(staged.status().code(), StatusCode::kUnsupported) << staged.status().to_string();
    return staged.status().to_string();
  };
  std::erase_if(maps_, [](const WeightMap& map) { return map.parameter == "embed"; });
  EXPECT_NE(refusal().find("embed.weight' is converted"), std::string::npos);
  leave_up_to_the_writer();
  std::erase_if(maps_, [](const WeightMap& map) { return map.parameter == "wide rows"; });
  EXPECT_NE(refusal().find("up.weight' is written by the engine's loader"), std::string::npos);
}

TEST_F(ModuleTest, RefusesWhatItCannotWrite) {
  refused_ = {"model.embed.weight"};
  const auto target = open_base();
  const auto staged = target->stage(chain({run_.step(1)}));
  EXPECT_EQ(staged.status().code(), StatusCode::kUnsupported);
  EXPECT_NE(staged.status().message().find("repacked"), std::string_view::npos);
  MappedParts parts;
  parts.layout = run_.layout;
  parts.maps = {maps_[0], maps_[0]};
  EXPECT_EQ(make_mapped_target(std::move(parts), {}).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace driftless::testing
