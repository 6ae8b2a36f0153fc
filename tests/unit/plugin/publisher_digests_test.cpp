// SPDX-License-Identifier: Apache-2.0
// The digests of tensors in manifests. Whatever form a version has, the publisher writes the
// digests that the weights have, and a receiver of some tensors proves them by these digests.
#include <gtest/gtest.h>

#include <set>

#include "formats/run_info.h"
#include "support/loopback_job.h"
#include "support/receiver_fixture.h"

namespace driftless {
namespace {

using namespace testing;

using std::chrono_literals::operator""s;

Manifest manifest_on(LoopbackHub& hub, const PublicationId& id) {
  const std::unique_ptr<ReceiveRoad> road = hub.receiver();
  const auto text = road->fetch_manifest(id, Deadline::after(1s));
  EXPECT_TRUE(text.ok()) << text.status().to_string();
  const auto manifest = parse_manifest(text.ok() ? *text : "", to_string(id));
  EXPECT_TRUE(manifest.ok()) << manifest.status().to_string();
  return manifest.ok() ? *manifest : Manifest{};
}

// Expects exactly the tensors that differ, or all for a full version, each with its digest.
void expect_digests(const Manifest& manifest, const Weights& before, const Weights& after) {
  const bool full = manifest.encoding == Encoding::kFull;
  std::set<std::string> expected, listed;
  for (const auto& [name, tensor] : after) {
    if (full || before.at(name).bytes != tensor.bytes) expected.insert(name);
  }
  for (const ManifestTensor& tensor : manifest.tensors) {
    listed.insert(tensor.name);
    ASSERT_TRUE(tensor.digest) << tensor.name;
    EXPECT_EQ(*tensor.digest, digest_of({{tensor.name, after.at(tensor.name)}})) << tensor.name;
  }
  EXPECT_EQ(listed, expected);
  EXPECT_EQ(manifest.changed_tensors, expected.size());
  EXPECT_EQ(manifest.digest, digest_of(after));
}

struct Way {
  unsigned ranks;
  DirectoryLayout layout;
  Encoding encoding;
};

class PublishedDigests : public ::testing::TestWithParam<Way> {
 protected:
  PublisherOptions options_ = [] {
    PublisherOptions options = quick_options();
    options.layout = GetParam().layout;
    options.encoding = GetParam().encoding;
    return options;
  }();
  LoopbackHub hub_{{}, GetParam().ranks};
  const Weights base_ = random_weights(1);
};

INSTANTIATE_TEST_SUITE_P(Ways, PublishedDigests,
                         ::testing::Values(Way{1, DirectoryLayout::kFrames, Encoding::kDeltas},
                                           Way{3, DirectoryLayout::kFrames, Encoding::kDeltasZstd},
                                           Way{2, DirectoryLayout::kFrames, Encoding::kCompact},
                                           Way{1, DirectoryLayout::kFlush, Encoding::kIndices},
                                           Way{2, DirectoryLayout::kFlush, Encoding::kDeltasZstd},
                                           Way{1, DirectoryLayout::kHfDelta, Encoding::kXor},
                                           Way{3, DirectoryLayout::kHfDelta,
                                               Encoding::kOverwrite}));

// Steps of one tensor, of many and of none, an aborted step, a full version, anchors, and a
// restart.
TEST_P(PublishedDigests, AreThoseOfTheWeights) {
  options_.anchor_every = 2;
  auto trainer = std::make_unique<Trainer>(hub_, GetParam().ranks, options_, base_);
  expect_ok(trainer->opened());
  Rollout rollout(hub_, base_);
  Weights weights = base_;
  for (std::uint64_t version = 1; version <= 7; ++version) {
    Weights next = changed_weights(weights, version, 0.01, "none");
    if (version == 2) {
      next = weights;
      next.begin()->second.bytes[0] ^= std::byte{1};
    }
    if (version == 3) next = weights;
    if (version == 5) next = random_weights(9);  // dense
    if (version == 4) {
      trainer->road(GetParam().ranks - 1).arm(RoadFault::kFlush);
      for (const Status& status : trainer->publish(changed_weights(weights, 44, 0.02, "none"))) {
        ASSERT_FALSE(status.ok());
      }
    }
    if (version == 6) {
      trainer.reset();
      trainer = std::make_unique<Trainer>(hub_, GetParam().ranks, options_, base_);
      expect_ok(trainer->opened());
      ASSERT_TRUE(trainer->rank(0).resumed());
    }
    expect_ok(trainer->publish(next));
    const Manifest manifest = manifest_on(hub_, {version, PublicationKind::kVersion});
    expect_digests(manifest, weights, next);
    if (version % 2 == 0 && GetParam().layout == DirectoryLayout::kHfDelta) {
      EXPECT_EQ(manifest.encoding, Encoding::kFull) << "others look among versions";
    } else if (version % 2 == 0) {
      expect_digests(manifest_on(hub_, {version, PublicationKind::kAnchor}), weights, next);
    }
    ASSERT_EQ(rollout.follow().to_string(), "ok");  // compares with the manifests every time
    ASSERT_TRUE(rollout.holds(next)) << version;
    weights = next;
  }
}

// A full version that failed leaves the digests of the weights that receivers have.
TEST_P(PublishedDigests, OutliveAFullVersionThatFailed) {
  Trainer trainer(hub_, GetParam().ranks, options_, base_);
  Rollout rollout(hub_, base_);
  trainer.road(0).arm(RoadFault::kSeal);
  for (const Status& status : trainer.publish(random_weights(2))) ASSERT_FALSE(status.ok());
  const Weights next = changed_weights(base_, 3, 0.01, "none");
  expect_ok(trainer.publish(next));
  expect_digests(manifest_on(hub_, {1, PublicationKind::kVersion}), base_, next);
  ASSERT_EQ(rollout.follow().to_string(), "ok");
  ASSERT_TRUE(rollout.holds(next));
}

// A receiver of every other tensor.
class PartialReceiverTest : public testing::ReceiverTest {
 protected:
  Status open_part(const Weights& weights, std::optional<VersionId> initial = VersionId{}) {
    receiver_.reset();
    held_ = weights;
    std::vector<std::byte*> data = testing::pointers(held_);
    for (std::size_t i = 1; i < data.size(); i += 2) data[i] = nullptr;
    auto target = make_memory_target(run_.layout, data, initial, 1);
    if (!target.ok()) return target.status();
    target_ = std::move(*target);
    return open_on(*target_);
  }
  // Expects the digests of a target that holds these tensors.
  void expect_held(std::uint64_t version) {
    ASSERT_EQ(target_->state().id.version, version);
    Digest sum;
    for (std::uint32_t i = 0; i < run_.layout.size(); i += 2) {
      const std::string& name = run_.layout[i].name;
      EXPECT_EQ(held_.at(name).bytes, run_.weights[version].at(name).bytes) << name;
      sum += digest_of({{name, run_.weights[version].at(name)}});
    }
    EXPECT_EQ(target_->state().digest, sum);
    const std::vector<Digest>& digests = receiver_->tensor_digests();
    ASSERT_EQ(digests.size(), run_.layout.size());
    for (std::size_t i = 0; i < digests.size(); ++i) {
      const std::string& name = run_.layout[i].name;
      EXPECT_EQ(digests[i], digest_of({{name, run_.weights[version].at(name)}})) << name;
    }
  }
  // Changes the manifest's digest of a tensor, and the digest of all weights accordingly.
  static ManifestTensor* listed(Manifest& manifest, const std::string& name) {
    for (ManifestTensor& tensor : manifest.tensors) {
      if (tensor.name == name) return &tensor;
    }
    return nullptr;
  }
  [[nodiscard]] std::string changed_tensor(const Manifest& manifest, std::size_t parity) const {
    for (const ManifestTensor& tensor : manifest.tensors) {
      if (*run_.layout.find(tensor.name) % 2 == parity) return tensor.name;
    }
    return {};
  }
};

TEST_F(PartialReceiverTest, ProvesItsPartAfterEveryVersion) {
  announce();
  ASSERT_EQ(open_part(run_.weights[0]).to_string(), "ok");
  expect_held(0);
  for (std::uint64_t version = 1; version <= 3; ++version) {
    publish(version, version);
    const auto done = update();
    ASSERT_TRUE(done.ok()) << done.status().to_string();
    expect_held(version);
  }
  publish(4, 6);  // folded
  ASSERT_TRUE(update().ok());
  expect_held(6);
  ASSERT_TRUE(receiver_->rollback().ok());
  expect_held(3);
  ASSERT_TRUE(update().ok());
  expect_held(6);
  send(*sender_, run_.step(7, DirectoryLayout::kFrames, Encoding::kFull));
  ASSERT_TRUE(update().ok());
  expect_held(7);
}

TEST_F(PartialReceiverTest, NamesTheTensorThatTheManifestHasAnotherDigestOf) {
  announce();
  for (const Encoding encoding : {Encoding::kDeltas, Encoding::kFull}) {
    testing::Publication wrong = run_.step(1, DirectoryLayout::kFrames, encoding);
    const std::string name = changed_tensor(wrong.manifest, 0);
    const std::string other = changed_tensor(wrong.manifest, 1);
    const Digest some{{5, 7}};
    *listed(wrong.manifest, name)->digest += some;
    *listed(wrong.manifest, other)->digest -= some;  // the sum does not change
    ASSERT_EQ(open_part(run_.weights[0]).to_string(), "ok");
    auto staged = target_->stage([&] {
      std::vector<FetchedVersion> chain;
      chain.push_back(wrong.fetched());
      chain.back().manifest.id.run = run_.run;
      return chain;
    }());
    ASSERT_FALSE(staged.ok());
    EXPECT_EQ(staged.status().code(), StatusCode::kMismatch) << staged.status().to_string();
    EXPECT_NE(staged.status().message().find("'" + name + "'"), std::string::npos)
        << staged.status().to_string();
    expect_held(0);
  }
}

TEST_F(PartialReceiverTest, RefusesDigestsThatDoNotAddUp) {
  announce();
  ASSERT_EQ(open_part(run_.weights[0]).to_string(), "ok");
  testing::Publication wrong = run_.step(1);
  const std::string other = changed_tensor(wrong.manifest, 1);  // a tensor that is not held here
  *listed(wrong.manifest, other)->digest += Digest{{1, 1}};
  send(*sender_, wrong);
  const auto done = update();
  EXPECT_EQ(done.status().code(), StatusCode::kMismatch) << done.status().to_string();
  EXPECT_NE(done.status().message().find("add up"), std::string::npos);
  expect_held(0);
}

// Somebody changed a weight at a place that the version changes, too.
TEST_F(PartialReceiverTest, NamesTheTensorWithAForeignWrite) {
  announce();
  ASSERT_EQ(open_part(run_.weights[0]).to_string(), "ok");
  publish(1, 1);
  const std::string name = changed_tensor(run_.step(1).manifest, 0);
  const auto& before = run_.weights[0].at(name).bytes;
  const auto& after = run_.weights[1].at(name).bytes;
  const auto at = static_cast<std::size_t>(
      std::mismatch(before.begin(), before.end(), after.begin()).first - before.begin());
  held_.at(name).bytes[at] ^= std::byte{0x10};
  const auto done = update();
  ASSERT_EQ(done.status().code(), StatusCode::kMismatch) << done.status().to_string();
  EXPECT_NE(done.status().message().find("'" + name + "'"), std::string::npos)
      << done.status().to_string();
}

TEST_F(PartialReceiverTest, IsHeldAgainstALaterVersionWhenItIsOpened) {
  announce();
  publish(1, 2);
  send(*sender_, run_.anchor(2));
  publish(3, 4);
  ASSERT_EQ(open_part(run_.weights[4], VersionId{run_.run, 4}).to_string(), "ok");
  expect_held(4);
  publish(5, 5);
  ASSERT_TRUE(update().ok());
  expect_held(5);
  Weights damaged = run_.weights[5];
  const std::string& name = run_.layout[0].name;
  damaged.at(name).bytes.back() ^= std::byte{1};
  const Status refused = open_part(damaged, VersionId{run_.run, 5});
  EXPECT_EQ(refused.code(), StatusCode::kWrongBase) << refused.to_string();
  EXPECT_NE(refused.message().find("'" + name + "'"), std::string::npos) << refused.to_string();
}

// The manifests that led to its version are gone: the held tensors are unproven until a full
// version lists all digests.
TEST_F(PartialReceiverTest, IsRefusedWhereTheManifestsAreGone) {
  announce();
  publish(1, 10);  // the ring holds 8
  EXPECT_EQ(open_part(run_.weights[10], VersionId{run_.run, 10}).code(), StatusCode::kWrongBase);
  publish(11, 11);
  ASSERT_EQ(open_part(run_.weights[10], std::nullopt).to_string(), "ok");
  send(*sender_, run_.step(12, DirectoryLayout::kFrames, Encoding::kFull));
  ASSERT_TRUE(update().ok());
  expect_held(12);
}

// As publishers of older releases made them.
TEST_F(PartialReceiverTest, FollowsManifestsWithoutDigests) {
  announce();
  ASSERT_EQ(open_part(run_.weights[0]).to_string(), "ok");
  testing::Publication old = run_.step(1);
  old.manifest.tensors.clear();
  send(*sender_, old);
  const auto done = update();
  ASSERT_TRUE(done.ok()) << done.status().to_string();
  EXPECT_TRUE(receiver_->tensor_digests().empty());
}

}  // namespace
}  // namespace driftless
