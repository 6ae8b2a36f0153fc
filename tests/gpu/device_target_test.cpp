// SPDX-License-Identifier: Apache-2.0
// The device target, bit for bit against a memory target that takes the same versions.
#include "plugin/device/device_factories.h"

#include <gtest/gtest.h>

#include "formats/frame.h"
#include "gpu/arrival.h"
#include "plugin/targets/mapped_target.h"
#include "support/frame_reseal.h"
#include "support/published_run.h"

namespace driftless::testing {
namespace {

struct Kind {
  DirectoryLayout layout;
  Encoding encoding;
  Arrival arrival;
};

std::string name_of(const ::testing::TestParamInfo<Kind>& instance) {
  constexpr const char* kArrivals[] = {"host", "device", "shifted"};
  return concat(to_string(instance.param.layout), "_", info(instance.param.encoding).name, "_",
                kArrivals[static_cast<int>(instance.param.arrival)]);
}

std::shared_ptr<WeightMemory> gpu_memory(std::uint64_t max_staging_bytes = 0) {
  auto memory = make_bounded_device_memory(0, max_staging_bytes);
  EXPECT_TRUE(memory.ok()) << memory.status().to_string();
  return *memory;
}

// A device target and a memory target, side by side.
struct Pair {
  explicit Pair(const Weights& base, const WeightLayout& layout,
                std::optional<VersionId> initial = VersionId{}, std::size_t missing = kNone)
      : held(base), model(base) {
    std::vector<std::byte*> host = pointers(held), dev = model.pointers();
    if (missing != kNone) host[missing] = dev[missing] = nullptr;
    auto on_host = make_memory_target(layout, host, initial, 1);
    auto on_device = make_memory_target(layout, dev, initial, 1, gpu_memory());
    EXPECT_TRUE(on_host.ok()) << on_host.status().to_string();
    EXPECT_TRUE(on_device.ok()) << on_device.status().to_string();
    memory = std::move(*on_host);
    device = std::move(*on_device);
    expect_same();
  }

  void expect_same() const {
    EXPECT_TRUE(model.holds(held));
    EXPECT_EQ(device->state(), memory->state());
  }
  static constexpr std::size_t kNone = ~std::size_t{0};

  Weights held;
  DeviceModel model;
  std::unique_ptr<WeightTarget> memory;
  std::unique_ptr<MappedTarget> device;
};

using Chain = std::vector<Publication>;

std::vector<FetchedVersion> fetched(const Chain& chain, Arrival arrival) {
  std::vector<FetchedVersion> versions;
  for (const Publication& each : chain) versions.push_back(land(each.fetched(), arrival));
  return versions;
}

void commit_both(Pair& pair, const Chain& chain, Arrival arrival) {
  auto on_host = pair.memory->stage(fetched(chain, Arrival::kHost));
  ASSERT_TRUE(on_host.ok()) << on_host.status().to_string();
  auto on_device = pair.device->stage(fetched(chain, arrival));
  ASSERT_TRUE(on_device.ok()) << on_device.status().to_string();
  EXPECT_TRUE(pair.model.holds(pair.held)) << "staging touched the weights";
  const auto expected = (*on_host)->commit();
  const auto report = (*on_device)->commit();
  ASSERT_TRUE(expected.ok() && report.ok()) << report.status().to_string();
  EXPECT_EQ(report->version, expected->version);
  EXPECT_EQ(report->digest, expected->digest);
  if (chain.size() == 1) {
    EXPECT_EQ(report->changed_units, expected->changed_units);
  }
  EXPECT_FALSE((*on_device)->commit().ok()) << "a change is committed once";
  pair.expect_same();
}

class DeviceDelta : public ::testing::TestWithParam<Kind> {
 protected:
  Publication step(std::uint64_t version) {
    return run_.step(version, GetParam().layout, GetParam().encoding);
  }
  auto stage(Pair& pair, const Chain& chain) {
    return pair.device->stage(fetched(chain, GetParam().arrival));
  }
  PublishedRun run_{random_weights(1, 200)};
};

TEST_P(DeviceDelta, EndsWhereTheMemoryTargetEnds) {
  Pair pair(run_.weights[0], run_.layout);
  std::uint64_t version = 0;
  for (const std::size_t fold : {1, 3, 1, 1, 2}) {
    Chain chain;
    for (std::size_t i = 0; i < fold; ++i) chain.push_back(step(++version));
    commit_both(pair, chain, GetParam().arrival);
  }
  EXPECT_TRUE(pair.model.holds(run_.weights[version]));
  EXPECT_EQ(pair.device->state().digest, digest_of(run_.weights[version]));
  const StagingMemory memory = pair.device->staging_memory();
  EXPECT_GT(memory.device_bytes, 0U);
  EXPECT_LE(memory.device_bytes, std::uint64_t{4} << 20) << "O(changed)";
}

TEST_P(DeviceDelta, UndoBringsEveryBitBack) {
  Pair pair(run_.weights[0], run_.layout);
  commit_both(pair, {step(1)}, GetParam().arrival);
  const TargetState before = pair.device->state();
  {
    const auto staged = stage(pair, {step(2), step(3)});
    ASSERT_TRUE(staged.ok()) << staged.status().to_string();
    EXPECT_FALSE((*staged)->undo().ok()) << "nothing was committed";
    ASSERT_TRUE((*staged)->commit().ok());
    EXPECT_TRUE(pair.model.holds(run_.weights[3]));
    ASSERT_TRUE((*staged)->undo().ok());
    EXPECT_TRUE(pair.model.holds(run_.weights[1]));
    EXPECT_EQ(pair.device->state(), before);
    EXPECT_FALSE((*staged)->undo().ok()) << "twice";
  }
  commit_both(pair, {step(2)}, GetParam().arrival);
}

TEST_P(DeviceDelta, AWrongDigestLeavesEveryBitAsItWas) {
  // Versions of `compact` are folded: of those only the last digest is reached, when staging.
  const bool folded = GetParam().encoding == Encoding::kCompact;
  for (const std::uint64_t bad : {1, 2, 3}) {
    if (folded && bad < 3) continue;
    Chain chain{step(1), step(2), step(3)};
    chain[bad - 1].manifest.digest.lanes[0] ^= 1;
    if (bad < 3) chain[bad].manifest.base_digest = chain[bad - 1].manifest.digest;
    Pair pair(run_.weights[0], run_.layout);
    auto staged = stage(pair, chain);
    EXPECT_EQ(staged.ok(), bad > 1 && !folded) << "the first version is proven when it is staged";
    const Status status = staged.ok() ? (*staged)->commit().status() : staged.status();
    EXPECT_EQ(status.code(), StatusCode::kMismatch) << status.to_string();
    EXPECT_NE(status.message().find("full version"), std::string_view::npos) << status.to_string();
    pair.expect_same();
    EXPECT_TRUE(pair.device->state().valid);
  }
}

TEST_P(DeviceDelta, ForeignBytesAreFoundAndLeftAsTheyWere) {
  const Publication first = step(1);
  const std::string name = run_.layout[0].name;
  const auto& before = run_.weights[0].at(name).bytes;
  const auto& after = run_.weights[1].at(name).bytes;
  const auto at = static_cast<std::uint64_t>(
      std::mismatch(before.begin(), before.end(), after.begin()).first - before.begin());
  for (const bool late : {false, true}) {
    Pair pair(run_.weights[0], run_.layout);
    if (!late) pair.model.flip(0, at);
    auto staged = stage(pair, {first});
    ASSERT_EQ(staged.ok(), late) << "what was written before is found when staging";
    if (late) pair.model.flip(0, at);
    const Status status = late ? (*staged)->commit().status() : staged.status();
    EXPECT_EQ(status.code(), StatusCode::kMismatch) << status.to_string();
    pair.held.at(name).bytes[at] ^= std::byte{0x40};
    EXPECT_TRUE(pair.model.holds(pair.held)) << "the foreign byte stays, and nothing else changed";
    EXPECT_EQ(pair.device->state().id.version, 0U);
  }
}

TEST_P(DeviceDelta, APartialTargetTakesWhatItHolds) {
  for (std::size_t missing = 0; missing < run_.layout.size(); missing += 2) {
    Pair pair(run_.weights[0], run_.layout, VersionId{}, missing);
    ASSERT_EQ(pair.device->state().partial, run_.layout[missing].size_bytes > 0);
    commit_both(pair, {step(1), step(2)}, GetParam().arrival);
    commit_both(pair, {step(3)}, GetParam().arrival);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, DeviceDelta,
    ::testing::Values(Kind{DirectoryLayout::kFrames, Encoding::kIndices, Arrival::kHost},
                      Kind{DirectoryLayout::kFrames, Encoding::kIndices, Arrival::kDevice},
                      Kind{DirectoryLayout::kFrames, Encoding::kDeltas, Arrival::kHost},
                      Kind{DirectoryLayout::kFrames, Encoding::kDeltas, Arrival::kDevice},
                      Kind{DirectoryLayout::kFrames, Encoding::kDeltas, Arrival::kShifted},
                      Kind{DirectoryLayout::kFrames, Encoding::kDeltasZstd, Arrival::kHost},
                      Kind{DirectoryLayout::kFrames, Encoding::kDeltasZstd, Arrival::kDevice},
                      Kind{DirectoryLayout::kFrames, Encoding::kCompact, Arrival::kHost},
                      Kind{DirectoryLayout::kFrames, Encoding::kCompact, Arrival::kDevice},
                      Kind{DirectoryLayout::kHdf5, Encoding::kDeltas, Arrival::kHost},
                      Kind{DirectoryLayout::kFlush, Encoding::kIndices, Arrival::kHost},
                      Kind{DirectoryLayout::kFlush, Encoding::kDeltasZstd, Arrival::kDevice}),
    name_of);

class DeviceFull : public ::testing::TestWithParam<Kind> {
 protected:
  DeviceFull() { static_cast<void>(run_.step(3)); }
  PublishedRun run_{random_weights(1, 200)};
};

TEST_P(DeviceFull, ReplacesWhateverIsThere) {
  Pair pair(changed_weights(run_.weights[0], 99, 0.5, "none"), run_.layout, std::nullopt);
  EXPECT_FALSE(pair.device->state().valid);
  commit_both(pair, {run_.anchor(2, GetParam().layout)}, GetParam().arrival);
  EXPECT_TRUE(pair.model.holds(run_.weights[2]));
  EXPECT_EQ(pair.device->state().digest, digest_of(run_.weights[2]));
  EXPECT_EQ(pair.device->stage(fetched({run_.anchor(1)}, Arrival::kHost)).status().code(),
            StatusCode::kWrongBase)
      << "never back";
  commit_both(pair, {run_.step(3)}, Arrival::kHost);
}

TEST_P(DeviceFull, AWrongDigestIsRefusedBeforeAnythingIsTouched) {
  Publication anchor = run_.anchor(2, GetParam().layout);
  anchor.manifest.digest.lanes[1] ^= 1;
  Pair pair(run_.weights[0], run_.layout);
  const auto staged = pair.device->stage(fetched({anchor}, GetParam().arrival));
  EXPECT_EQ(staged.status().code(), StatusCode::kMismatch) << staged.status().to_string();
  pair.expect_same();
}

TEST_P(DeviceFull, APartialTargetTakesWhatItHolds) {
  Pair pair(run_.weights[0], run_.layout, std::nullopt, 1);
  commit_both(pair, {run_.anchor(3, GetParam().layout)}, GetParam().arrival);
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, DeviceFull,
    ::testing::Values(Kind{DirectoryLayout::kFrames, Encoding::kFull, Arrival::kHost},
                      Kind{DirectoryLayout::kFrames, Encoding::kFull, Arrival::kDevice},
                      Kind{DirectoryLayout::kFrames, Encoding::kFull, Arrival::kShifted},
                      Kind{DirectoryLayout::kHfDelta, Encoding::kFull, Arrival::kHost},
                      Kind{DirectoryLayout::kHfDelta, Encoding::kFull, Arrival::kDevice}),
    name_of);

TEST(DeviceTarget, ChangesOfBitsComeToTheHostFirst) {
  PublishedRun run(random_weights(1, 200));
  Pair pair(run.weights[0], run.layout);
  const Publication first = run.step(1, DirectoryLayout::kHfDelta, Encoding::kXor);
  const Publication second = run.step(2, DirectoryLayout::kHfDelta, Encoding::kOverwrite);
  commit_both(pair, {first}, Arrival::kDevice);
  commit_both(pair, {second, run.step(3)}, Arrival::kDevice);  // frames in such a chain, too
  EXPECT_TRUE(pair.model.holds(run.weights[3]));
}

TEST(DeviceTarget, WhatItDoesNotTakeIsRefused) {
  PublishedRun run(random_weights(1, 20));
  Pair pair(run.weights[0], run.layout);
  const auto refusal = [&](std::vector<FetchedVersion> chain) {
    return pair.device->stage(std::move(chain)).status().code();
  };
  EXPECT_EQ(refusal(fetched({run.step(2)}, Arrival::kHost)), StatusCode::kWrongBase);
  EXPECT_EQ(pair.memory->stage(fetched({run.step(1)}, Arrival::kDevice)).status().code(),
            StatusCode::kUnsupported)
      << "the host does not follow pointers into the device";
  pair.expect_same();
}

TEST(DeviceTarget, StagingKeepsWithinItsBound) {
  PublishedRun run(random_weights(1, 200));
  const DeviceModel model(run.weights[0]);
  const auto target =
      make_memory_target(run.layout, model.pointers(), VersionId{}, 1, gpu_memory(4096));
  ASSERT_TRUE(target.ok()) << target.status().to_string();
  const auto staged = (*target)->stage(fetched({run.step(1)}, Arrival::kHost));
  EXPECT_EQ(staged.status().code(), StatusCode::kNoSpace) << staged.status().to_string();
  EXPECT_TRUE(model.holds(run.weights[0]));
}

TEST(DeviceTarget, DamagedPositionsAreRefused) {
  PublishedRun run(random_weights(1, 200));
  Publication bad = run.step(1, DirectoryLayout::kFrames, Encoding::kIndices);
  for (auto& [name, bytes] : bad.parts) {
    bytes[kFrameHeaderBytes + 3] = std::byte{0x7f};  // the first position goes past everything
    reseal(bytes);
  }
  bad.list_parts();
  for (const Arrival arrival : {Arrival::kHost, Arrival::kDevice}) {
    Pair pair(run.weights[0], run.layout);
    const auto staged = pair.device->stage(fetched({bad}, arrival));
    EXPECT_EQ(staged.status().code(), StatusCode::kCorrupt) << staged.status().to_string();
    pair.expect_same();
  }
}

TEST(DeviceTarget, OwnsItsWeights) {
  PublishedRun run(random_weights(1, 200));
  TempDir dir(TempDir::Where::kMemory);
  write_checkpoint(dir.file("base"), run.weights[0], 2);
  for (const bool with_base : {true, false}) {
    const auto base = with_base ? std::optional(dir.file("base")) : std::nullopt;
    auto target = make_owned_target(posix_file_system(), base, 1, gpu_memory());
    ASSERT_TRUE(target.ok()) << target.status().to_string();
    ASSERT_TRUE((*target)->adopt_layout(run.layout).ok());
    EXPECT_EQ((*target)->state().valid, with_base);
    const Publication next = with_base ? run.step(1) : run.anchor(1);
    auto staged = (*target)->stage(fetched({next}, Arrival::kHost));
    ASSERT_TRUE(staged.ok()) << staged.status().to_string();
    ASSERT_TRUE((*staged)->commit().ok());
    for (std::size_t i = 0; i < run.layout.size(); ++i) {
      std::vector<std::byte> bytes(run.layout[i].size_bytes);
      must((*target)->read(i, 0, bytes));
      EXPECT_EQ(bytes, run.weights[1].at(run.layout[i].name).bytes);
    }
    std::byte beyond[1];
    EXPECT_FALSE((*target)->read(0, run.layout[0].size_bytes, beyond).ok());
  }
}

}  // namespace
}  // namespace driftless::testing
