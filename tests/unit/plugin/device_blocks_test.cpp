// SPDX-License-Identifier: Apache-2.0
// Blocks that are fetched into memory of a GPU, and proven there. The memory is the host's here,
// and only its own calls read it; tests/gpu has a GPU's.
#include <gtest/gtest.h>

#include <cstring>

#include "plugin/receive/block_fetcher.h"
#include "plugin/targets/version_source.h"
#include "support/loopback_job.h"
#include "support/published_run.h"

namespace driftless::testing {
namespace {

using namespace std::chrono_literals;

class StandInArrivals final : public ArrivalMemory {
 public:
  Result<DeviceSpace> take(std::uint64_t bytes) override {
    if (bytes > room) return error(StatusCode::kNoSpace, "no room for ", bytes, " bytes");
    const auto held = std::make_shared<std::vector<std::byte>>(bytes + 1, std::byte{0xa5});
    const std::shared_ptr<std::byte> memory(held, held->data());
    return DeviceSpace{.allocation = memory,
                       .allocation_bytes = bytes,
                       .memory = memory,
                       .copy = [this](std::byte* to, std::span<const std::byte> from) -> Status {
                         copied += from.size();
                         std::memcpy(to, from.data(), from.size());
                         return {};
                       }};
  }
  Result<std::vector<Hash128>> hash(
      std::span<const std::span<const std::byte>> stretches) override {
    std::vector<Hash128> hashes;
    for (const std::span<const std::byte> each : stretches) {
      if (hashes.size() == damaged) *const_cast<std::byte*>(each.data()) ^= std::byte{1};
      hashes.push_back(xxh3_128(each));
    }
    return hashes;
  }
  std::uint64_t room = ~std::uint64_t{0}, copied = 0;
  std::size_t damaged = ~std::size_t{0};  // the stretch that is damaged before it is hashed
};

class DeviceBlocks : public ::testing::TestWithParam<Encoding> {
 protected:
  void publish() {
    PublisherOptions options = quick_options();
    options.encoding = GetParam();
    options.full_above_density = 2;
    Trainer trainer(hub_, 1, options, base_);
    expect_ok(trainer.opened());
    expect_ok(trainer.publish(changed_weights(base_, 3, 0.05)));
    road_ = hub_.receiver();
    const auto text = road_->fetch_manifest(id_, Deadline::after(1s));
    ASSERT_TRUE(text.ok()) << text.status().to_string();
    auto parsed = parse_manifest(*text, "the version");
    ASSERT_TRUE(parsed.ok()) << parsed.status().to_string();
    manifest_ = std::move(*parsed);
  }
  [[nodiscard]] Result<std::optional<FetchedBlocks>> fetch(
      const FrameCollector::Needed& needed = [](const BucketEntry&) { return true; }) {
    return fetch_blocks_to_device(*road_, id_, manifest_, layout_, needed, memory_, {},
                                  Deadline::after(5s));
  }
  // The whole frame as it is on the road, decoded on the host.
  [[nodiscard]] Frame whole(const ManifestFile& file, MappedFile& bytes) const {
    auto part = road_->fetch_part(
        id_, {file.name, file.rank, file.size_bytes, file.hash, file.locator}, Deadline::after(1s));
    EXPECT_TRUE(part.ok());
    bytes = std::move(*part);
    auto frame = Frame::decode(bytes.bytes(), layout_, max_frame_body_bytes(layout_));
    EXPECT_TRUE(frame.ok()) << frame.status().to_string();
    return std::move(*frame);
  }

  const Weights base_ = random_weights(7, 300);
  const WeightLayout layout_ = layout_of(base_);
  const PublicationId id_{1, PublicationKind::kVersion};
  LoopbackHub hub_{{}, 1};
  std::unique_ptr<ReceiveRoad> road_;
  Manifest manifest_;
  StandInArrivals memory_;
};
INSTANTIATE_TEST_SUITE_P(Encodings, DeviceBlocks,
                         ::testing::Values(Encoding::kDeltas, Encoding::kIndices),
                         [](const auto& test) {
                           return std::string(driftless::info(test.param).name);
                         });

TEST_P(DeviceBlocks, AreThoseOfTheFramesAndSayWhereTheyLie) {
  publish();
  auto blocks = fetch();
  ASSERT_TRUE(blocks.ok()) << blocks.status().to_string();
  ASSERT_TRUE(blocks->has_value());
  ASSERT_EQ((*blocks)->frames.size(), manifest_.files.size());
  EXPECT_GT(memory_.copied, 0U);
  for (FetchedFrame& fetched : (*blocks)->frames) {
    const auto frame = fetched.collector.finish(layout_);
    ASSERT_TRUE(frame.ok()) << frame.status().to_string();
    EXPECT_EQ(frame->memory(), MemoryKind::kDevice);
    MappedFile bytes;
    const Frame expected = whole(manifest_.files[fetched.file], bytes);
    EXPECT_EQ(expected.memory(), MemoryKind::kHost);
    EXPECT_EQ(frame->bucket().entries.size(), expected.bucket().entries.size());
    EXPECT_TRUE(std::ranges::equal(frame->bucket().positions, expected.bucket().positions));
    EXPECT_TRUE(std::ranges::equal(frame->bucket().values, expected.bucket().values));
  }
}

TEST_P(DeviceBlocks, OnlyTheNeededOnesAreRead) {
  publish();
  auto blocks = fetch([](const BucketEntry& entry) { return entry.tensor % 2 == 0; });
  ASSERT_TRUE(blocks.ok() && blocks->has_value()) << blocks.status().to_string();
  std::uint64_t needed = 0;
  for (FetchedFrame& fetched : (*blocks)->frames) {
    const auto frame = fetched.collector.finish(layout_);
    ASSERT_TRUE(frame.ok()) << frame.status().to_string();
    for (const BucketEntry& entry : frame->bucket().entries) EXPECT_EQ(entry.tensor % 2, 0U);
    needed += frame->bucket().positions.size() + frame->bucket().values.size();
  }
  EXPECT_EQ(memory_.copied, needed);
}

TEST_P(DeviceBlocks, ADamagedOneIsNamed) {
  publish();
  memory_.damaged = 0;
  auto blocks = fetch();
  ASSERT_TRUE(blocks.ok() && blocks->has_value()) << blocks.status().to_string();
  const Status found = (*blocks)->frames.front().collector.finish(layout_).status();
  EXPECT_EQ(found.code(), StatusCode::kCorrupt) << found.to_string();
  EXPECT_NE(found.message().find("tensor"), std::string::npos) << found.to_string();
}

TEST_P(DeviceBlocks, WithoutRoomTheyAreLeftToTheHost) {
  publish();
  memory_.room = 10;
  const auto blocks = fetch();
  ASSERT_TRUE(blocks.ok()) << blocks.status().to_string();
  EXPECT_FALSE(blocks->has_value());
}

class CompressedDeviceBlocks : public DeviceBlocks {};
INSTANTIATE_TEST_SUITE_P(Encodings, CompressedDeviceBlocks,
                         ::testing::Values(Encoding::kDeltasZstd, Encoding::kCompact),
                         [](const auto& test) {
                           return std::string(driftless::info(test.param).name);
                         });
TEST_P(CompressedDeviceBlocks, AreLeftToTheHost) {
  publish();
  const auto blocks = fetch();
  ASSERT_TRUE(blocks.ok()) << blocks.status().to_string();
  EXPECT_FALSE(blocks->has_value());
}

}  // namespace
}  // namespace driftless::testing
