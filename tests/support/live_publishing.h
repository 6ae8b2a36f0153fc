// SPDX-License-Identifier: Apache-2.0
// A fixture for publishers without a snapshot: a trainer in this process, and a rollout.
#pragma once

#include <gtest/gtest.h>

#include "support/loopback_job.h"
#include "support/published_run.h"

namespace driftless::testing {

// A rollout that keeps its weights in a checkpoint directory.
class CheckpointRollout {
 public:
  CheckpointRollout(LoopbackHub& hub, const Weights& base) : road_(hub.receiver()) {
    write_checkpoint(dir_.file("copy"), base);
    auto made = make_checkpoint_target(posix_file_system(), dir_.file("copy"), 1);
    EXPECT_TRUE(made.ok()) << made.status().to_string();
    target_ = std::move(*made);
    ReceiverOptions options;
    options.id = "checkpoint";
    auto opened =
        Receiver::open(options, *road_, *target_, Deadline::after(std::chrono::seconds(1)));
    EXPECT_TRUE(opened.ok()) << opened.status().to_string();
    receiver_ = std::move(*opened);
  }
  Status follow() {
    for (;;) {
      DRIFTLESS_ASSIGN_OR_RETURN(const bool news,
                                 receiver_->stage(Deadline::after(std::chrono::milliseconds(20))));
      if (!news) return {};
      DRIFTLESS_RETURN_IF_ERROR(receiver_->commit().status());
    }
  }
  [[nodiscard]] bool holds(const Weights& weights) {
    return driftless::testing::holds(dir_.file("copy"), weights);
  }

 private:
  TempDir dir_{TempDir::Where::kMemory};
  std::unique_ptr<ReceiveRoad> road_;
  std::unique_ptr<WeightTarget> target_;
  std::unique_ptr<Receiver> receiver_;
};

struct LiveWay {
  unsigned ranks;
  Encoding encoding = Encoding::kDeltas;
  DirectoryLayout layout = DirectoryLayout::kFrames;
};

class LivePublishing : public ::testing::TestWithParam<LiveWay> {
 protected:
  // With `blocks` every rank offers blocks of tensors, otherwise whole tensors.
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
    if (!files_) files_.emplace(hub_, base_);
  }
  void expect_followed(const Weights& weights) {
    ASSERT_EQ(rollout_->follow().to_string(), "ok");
    EXPECT_TRUE(rollout_->holds(weights));
    ASSERT_EQ(files_->follow().to_string(), "ok");
    EXPECT_TRUE(files_->holds(weights));
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
  std::optional<CheckpointRollout> files_;
};

inline constexpr const char* kEmbed = "model.embed.weight";

}  // namespace driftless::testing
