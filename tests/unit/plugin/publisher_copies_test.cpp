// SPDX-License-Identifier: Apache-2.0
// If two publisher ranks hold tensors of one name, these must be equal in every version.
#include <gtest/gtest.h>

#include "support/loopback_job.h"
#include "support/published_run.h"

namespace driftless {
namespace {

using namespace testing;

constexpr const char* kEmbed = "model.embed.weight";
constexpr const char* kNorm = "model.norm.weight";

struct CopyWay {
  const char* differs;  // the tensor that differs on rank 1
  bool snapshot = true;
  bool watched = false;
  UpdateMode mode = UpdateMode::kDelta;
  DirectoryLayout layout = DirectoryLayout::kFrames;
};

// Rank 0 publishes the norm and two blocks of a matrix. Rank 1 also has the norm and one of these
// blocks, and publishes the rest.
class PublishedCopies : public ::testing::TestWithParam<CopyWay> {
 protected:
  PublishedCopies() {
    options_.keep_snapshot = GetParam().snapshot;
    options_.mode = GetParam().mode;
    options_.layout = GetParam().layout;
    options_.sweep_every = 0;
    if (GetParam().watched) Trainer::watch({kNorm, kEmbed});
    Trainer::offer_as([this](const Weights& weights, unsigned rank) {
      const TensorBox top{{0, 0}, {100, 48}}, left{{100, 0}, {156, 20}}, rest{{100, 20}, {156, 28}};
      Weights held = weights;
      if (rank == 1 && differ_) held.at(GetParam().differs).bytes[100 * 48 * 2] ^= std::byte{1};
      MemorySource source({}, 2);
      source.add(kNorm, held.at(kNorm));
      source.add(kEmbed, held.at(kEmbed), rank == 0 ? top : rest);
      source.add(kEmbed, held.at(kEmbed), left);
      return source;
    });
  }
  ~PublishedCopies() override {
    Trainer::offer_as({});
    Trainer::watch({});
  }

  bool differ_ = false;
  PublisherOptions options_ = quick_options();
  LoopbackHub hub_{{}, 2};
};

INSTANTIATE_TEST_SUITE_P(
    Ways, PublishedCopies,
    ::testing::Values(CopyWay{kNorm}, CopyWay{kEmbed}, CopyWay{kNorm, false},
                      CopyWay{kEmbed, false}, CopyWay{kNorm, false, true},
                      CopyWay{kEmbed, false, true}, CopyWay{kNorm, true, false, UpdateMode::kFull},
                      CopyWay{kEmbed, false, false, UpdateMode::kFull},
                      CopyWay{kNorm, true, false, UpdateMode::kDelta, DirectoryLayout::kFlush}));

TEST_P(PublishedCopies, StayTheSameOrNothingIsPublished) {
  TestTensor norm{DType::kBF16, {5000}, {}};
  norm.bytes.resize(10'000);
  const Weights base{{kEmbed, random_weights(1).at(kEmbed)}, {kNorm, norm}};
  Trainer trainer(hub_, 2, options_, base);
  expect_ok(trainer.opened());
  Rollout rollout(hub_, base);
  const Weights first = changed_weights(base, 2, 0.02, "none");
  expect_ok(trainer.publish(first));
  ASSERT_EQ(rollout.follow().to_string(), "ok");
  EXPECT_TRUE(rollout.holds(first));

  differ_ = true;
  const Weights second = changed_weights(first, 3, 0.02, "none");
  for (const Status& status : trainer.publish(second)) {
    EXPECT_EQ(status.code(), StatusCode::kMismatch) << status.to_string();
    EXPECT_NE(status.message().find(concat("tensor '", GetParam().differs,
                                           "' has other bits on publisher rank 1 than on rank 0")),
              std::string::npos)
        << status.message();
  }
  ASSERT_EQ(rollout.follow().to_string(), "ok");
  EXPECT_TRUE(rollout.holds(first));

  differ_ = false;
  expect_ok(trainer.publish(second));
  ASSERT_EQ(rollout.follow().to_string(), "ok");
  EXPECT_TRUE(rollout.holds(second));
}

}  // namespace
}  // namespace driftless
