// SPDX-License-Identifier: Apache-2.0
// Parts that are mappings of shared files. A faulty writer writes into them after their hash was
// compared; none of that may reach the weights.
#include <gtest/gtest.h>

#include <fstream>

#include "collectives/forwarding_receive_road.h"
#include "collectives/part_ranges.h"
#include "plugin/receive/receiver.h"
#include "support/published_run.h"

namespace driftless::testing {
namespace {

using namespace std::chrono_literals;

// Parts are mappings of files, as on host_shm, and a test can damage them.
class MappingRoad final : public ForwardingReceiveRoad {
 public:
  MappingRoad(std::unique_ptr<ReceiveRoad> road, std::string dir)
      : ForwardingReceiveRoad(std::move(road)), dir_(std::move(dir)) {}

  void damage() const {
    for (const auto& entry : std::filesystem::directory_iterator(dir_)) {
      std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
      file.seekg(-1, std::ios::end);
      const auto last = static_cast<char>(file.get());
      file.seekp(-1, std::ios::end);
      file.put(static_cast<char>(last ^ 1));
    }
  }

  Result<MappedFile> fetch_part(const PublicationId& id, const PartReceipt& part,
                                const Deadline& deadline) override {
    DRIFTLESS_ASSIGN_OR_RETURN(const MappedFile bytes, road_->fetch_part(id, part, deadline));
    const std::string path = dir_ + "/" + part.name;
    std::ofstream(path, std::ios::binary | std::ios::trunc)
        .write(reinterpret_cast<const char*>(bytes.bytes().data()),
               static_cast<std::streamsize>(bytes.bytes().size()));
    return posix_file_system().map(path);
  }
  Result<std::vector<MappedFile>> fetch_ranges(const PublicationId& id, const PartReceipt& part,
                                               std::span<const ByteRange> ranges,
                                               const Deadline& deadline) override {
    DRIFTLESS_ASSIGN_OR_RETURN(const MappedFile whole, fetch_part(id, part, deadline));
    return slices(whole, ranges);
  }
  [[nodiscard]] bool fetches_at_once() const override { return false; }

 private:
  std::string dir_;
};

// Runs an action of the test after the hashes were compared and before decoding.
class HookedTarget final : public WeightTarget {
 public:
  HookedTarget(std::unique_ptr<WeightTarget> target, std::function<void()> before_stage)
      : target_(std::move(target)), before_stage_(std::move(before_stage)) {}
  [[nodiscard]] const WeightLayout* layout() const override { return target_->layout(); }
  Status adopt_layout(const WeightLayout& layout) override { return target_->adopt_layout(layout); }
  [[nodiscard]] TargetState state() const override { return target_->state(); }
  Status recover() override { return target_->recover(); }
  Result<std::unique_ptr<StagedChange>> stage(std::vector<FetchedVersion> chain) override {
    before_stage_();
    return target_->stage(std::move(chain));
  }

 private:
  std::unique_ptr<WeightTarget> target_;
  std::function<void()> before_stage_;
};

struct MappedCase {
  DirectoryLayout layout;
  Encoding encoding;
  bool copied;  // up to fold_bytes
};

class MappedPartsTest : public ::testing::TestWithParam<MappedCase> {
 protected:
  // Follows one version with a rollout that holds all tensors but one, so that no digest proves its
  // weights. The parts are damaged before they are decoded, or before they are committed.
  Status follow(bool before_stage, Weights& held) {
    PublishedRun run = run_;
    LoopbackHub hub({}, 1);
    const auto sender = hub.sender(0);
    DRIFTLESS_RETURN_IF_ERROR(sender->announce(run_info_to_json(run.info()), soon()));
    send(*sender, GetParam().encoding == Encoding::kFull
                      ? full_step(run)
                      : run.step(1, GetParam().layout, GetParam().encoding));
    const TempDir parts(TempDir::Where::kMemory);
    MappingRoad road(hub.receiver(), parts.path());
    std::vector<std::byte*> data = pointers(held);
    data[*run.layout.find("model.norm.weight")] = nullptr;
    auto memory = make_memory_target(run.layout, data, VersionId{}, 1);
    DRIFTLESS_RETURN_IF_ERROR(memory.status());
    HookedTarget target(std::move(*memory), [&] {
      if (before_stage) road.damage();
    });
    ReceiverOptions options;
    options.fetch_deadline = 100ms;
    options.threads = 2;
    options.fold_bytes = GetParam().copied ? std::uint64_t{1} << 30 : 0;
    auto receiver = Receiver::open(options, road, target, soon());
    DRIFTLESS_RETURN_IF_ERROR(receiver.status());
    DRIFTLESS_RETURN_IF_ERROR((*receiver)->stage(soon()).status());
    if (!before_stage) road.damage();
    return (*receiver)->commit().status();
  }

  static Deadline soon() { return Deadline::after(2s); }
  static Publication full_step(PublishedRun& run) {
    const Publication step = run.step(1);  // adds its weights to run
    Publication full = run.anchor(1, GetParam().layout);
    full.id.kind = PublicationKind::kVersion;
    return full;
  }

  PublishedRun run_ = PublishedRun(random_weights(1));
};

TEST_P(MappedPartsTest, DamagedAfterTheirHashWasComparedNeverReachTheWeights) {
  for (const bool before_stage : {true, false}) {
    Weights held = run_.weights[0];
    const Status done = follow(before_stage, held);
    Weights expected = changed_weights(run_.weights[0], 1, 0.01);
    if (!done.ok()) expected = run_.weights[0];
    expected["model.norm.weight"] = held.at("model.norm.weight");  // not held
    EXPECT_TRUE(same(held, expected))
        << (before_stage ? "before staging: " : "before committing: ") << done.to_string();
    EXPECT_EQ(done.ok(), GetParam().copied) << done.to_string();
  }
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, MappedPartsTest,
    ::testing::Values(MappedCase{DirectoryLayout::kFlush, Encoding::kDeltas, true},
                      MappedCase{DirectoryLayout::kFlush, Encoding::kDeltas, false},
                      MappedCase{DirectoryLayout::kFrames, Encoding::kDeltas, true},
                      MappedCase{DirectoryLayout::kFrames, Encoding::kDeltas, false},
                      MappedCase{DirectoryLayout::kFrames, Encoding::kFull, true},
                      MappedCase{DirectoryLayout::kFrames, Encoding::kFull, false}));

}  // namespace
}  // namespace driftless::testing
