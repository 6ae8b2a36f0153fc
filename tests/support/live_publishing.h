// SPDX-License-Identifier: Apache-2.0
// A fixture for publishers without a snapshot: a trainer in this process, and a rollout.
#pragma once

#include <gtest/gtest.h>

#include "support/loopback_job.h"
#include "support/published_run.h"

namespace driftless::testing {

struct LiveWay {
  unsigned ranks;
  Encoding encoding = Encoding::kDeltas;
  DirectoryLayout layout = DirectoryLayout::kFrames;
};

class LivePublishing : public ::testing::TestWithParam<LiveWay> {
 protected:
  // `blocks`: every rank offers blocks of tensors; else whole ones.
  explicit LivePublishing(bool blocks) {
    options_.keep_snapshot = false;
    options_.encoding = GetParam().encoding;
    options_.layout = GetParam().layout;
    if (!blocks) return;
    Trainer::offer_as([](const Weights& weights, unsigned rank) {
      return in_blocks(weights, rank, GetParam().ranks, 2);
    });
  }
  ~LivePublishing() override {
    Trainer::offer_as({});
    Trainer::hold_at_first({});
    Trainer::watch({});
  }
  void open(const Weights& base) {
    trainer_.reset();
    trainer_ = std::make_unique<Trainer>(hub_, GetParam().ranks, options_, base);
    expect_ok(trainer_->opened());
    if (!rollout_) rollout_.emplace(hub_, base_);
  }
  void expect_followed(const Weights& weights) {
    ASSERT_EQ(rollout_->follow().to_string(), "ok");
    EXPECT_TRUE(rollout_->holds(weights));
  }
  void expect_published(const Weights& weights) {
    expect_ok(trainer_->publish_live());
    expect_followed(weights);
  }

  PublisherOptions options_ = quick_options();
  LoopbackHub hub_{{}, GetParam().ranks};
  const Weights base_ = random_weights(1);
  std::unique_ptr<Trainer> trainer_;
  std::optional<Rollout> rollout_;
};

inline constexpr const char* kEmbed = "model.embed.weight";

}  // namespace driftless::testing
