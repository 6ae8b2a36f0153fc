// SPDX-License-Identifier: Apache-2.0
// Tensors whose positions do not fit the 4 bytes that files for other readers have.
#include <gtest/gtest.h>

#include "formats/flush_file.h"
#include "formats/manifest.h"
#include "support/loopback_job.h"

namespace driftless {
namespace {

using testing::changed_weights;
using testing::expect_ok;
using testing::quick_options;
using testing::random_weights;
using testing::Rollout;
using testing::Trainer;
using testing::Weights;

struct PositionsCase {
  DirectoryLayout layout;
  Encoding asked, fits;
};

TEST(PublisherPositions, AnEncodingIsTakenWhosePositionsFit) {
  for (const PositionsCase& each :
       {PositionsCase{DirectoryLayout::kHfDelta, Encoding::kOverwrite, Encoding::kXor},
        PositionsCase{DirectoryLayout::kFlush, Encoding::kIndices, Encoding::kDeltas}}) {
    for (const bool large : {false, true}) {
      LoopbackHub hub({}, 2);
      Weights weights = random_weights(1);
      PublisherOptions options = quick_options();
      options.layout = each.layout;
      options.encoding = each.asked;
      if (large) options.position_limit = 256;
      Trainer trainer(hub, 2, options, weights);
      expect_ok(trainer.opened());
      ASSERT_EQ(trainer.rank(0).notes().size(), large ? 1U : 0U);
      if (large) {
        EXPECT_NE(trainer.rank(0).notes()[0].find("too large"), std::string::npos);
      }
      Rollout rollout(hub, weights);
      for (unsigned version = 1; version <= 3; ++version) {
        weights = changed_weights(weights, version, 0.01, "none");
        expect_ok(trainer.publish(weights));
        EXPECT_EQ(trainer.report().encoding, large ? each.fits : each.asked);
        ASSERT_EQ(rollout.follow().to_string(), "ok");
        EXPECT_TRUE(rollout.holds(weights));
      }
    }
  }
}

// The positions of the only parameter of a version's only file.
std::vector<std::uint64_t> published_positions(LoopbackHub& hub, const PublicationId& id,
                                               const Weights& weights) {
  const auto deadline = Deadline::after(std::chrono::seconds(5));
  const auto road = hub.receiver();
  const auto manifest = parse_manifest(*road->fetch_manifest(id, deadline), "manifest");
  EXPECT_TRUE(manifest.ok() && manifest->files.size() == 1);
  const ManifestFile& part = manifest->files.front();
  auto file = road->fetch_part(
      id, {.name = part.name, .size_bytes = part.size_bytes, .hash = part.hash}, deadline);
  EXPECT_TRUE(file.ok()) << file.status().to_string();
  std::vector<TensorSpec> specs;
  for (const auto& [name, tensor] : weights) {
    specs.push_back(*TensorSpec::make(name, tensor.dtype, tensor.shape));
  }
  const WeightLayout layout = *WeightLayout::make(specs);
  const auto flush =
      FlushFile::open(posix_file_system(), std::move(*file), layout, id.version, "/tmp");
  EXPECT_TRUE(flush.ok()) << flush.status().to_string();
  const BucketView bucket = flush->buckets().front();
  EntryCursor cursor(layout, bucket, bucket.entries.front());
  std::vector<std::uint64_t> positions;
  for (;;) {
    const auto delta = cursor.next();
    EXPECT_TRUE(delta.ok());
    if (!delta.ok() || delta->offsets.empty()) return positions;
    for (const std::uint32_t offset : delta->offsets) positions.push_back(delta->origin + offset);
  }
}

TEST(PublisherPositions, AGapThatDoesNotFitIsBridgedByWhatDidNotChange) {
  for (const Encoding encoding : {Encoding::kDeltas, Encoding::kDeltasZstd}) {
    LoopbackHub hub({}, 1);
    Weights weights = random_weights(1);
    PublisherOptions options = quick_options();
    options.layout = DirectoryLayout::kFlush;
    options.encoding = encoding;
    options.position_limit = 100;
    Trainer trainer(hub, 1, options, weights);
    expect_ok(trainer.opened());
    Rollout rollout(hub, weights);
    auto& tensor = weights.at("model.embed.weight");
    const std::uint64_t units = tensor.bytes.size() / unit_bytes(tensor.dtype);
    ASSERT_GT(units, 300U);
    tensor.bytes.back() ^= std::byte{1};
    expect_ok(trainer.publish(weights));
    EXPECT_EQ(trainer.report().changed_units, 1U);
    const auto positions = published_positions(hub, {1, PublicationKind::kVersion}, weights);
    ASSERT_GT(positions.size(), 3U);
    EXPECT_EQ(positions.back(), units - 1);
    std::uint64_t next = 0;
    for (const std::uint64_t position : positions) {
      EXPECT_LT(position - next, options.position_limit);
      next = position + 1;
    }
    ASSERT_EQ(rollout.follow().to_string(), "ok");
    EXPECT_TRUE(rollout.holds(weights)) << "what bridges a gap changes nothing";
  }
}

}  // namespace
}  // namespace driftless
