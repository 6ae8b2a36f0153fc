// SPDX-License-Identifier: Apache-2.0
// Whether a receiver resumes the engine that it paused: only if the weights are a version.
#include <gtest/gtest.h>

#include "plugin/receive/receiver.h"
#include "support/published_run.h"

namespace driftless {
namespace {

using std::chrono::milliseconds;

// A target whose commit fails in the middle, once; recover() ends it.
class TearingTarget final : public WeightTarget {
 public:
  explicit TearingTarget(std::unique_ptr<WeightTarget> target) : target_(std::move(target)) {}
  [[nodiscard]] const WeightLayout* layout() const override { return target_->layout(); }
  Status adopt_layout(const WeightLayout& layout) override { return target_->adopt_layout(layout); }
  [[nodiscard]] TargetState state() const override {
    TargetState state = target_->state();
    state.valid = state.valid && !torn_;
    return state;
  }
  Status recover() override {
    torn_ = torn_ && !can_recover;
    return {};
  }
  Result<std::unique_ptr<StagedChange>> stage(std::vector<FetchedVersion> chain) override {
    DRIFTLESS_ASSIGN_OR_RETURN(auto change, target_->stage(std::move(chain)));
    return std::unique_ptr<StagedChange>(std::make_unique<Change>(*this, std::move(change)));
  }

  bool can_recover = false;

 private:
  class Change final : public StagedChange {
   public:
    Change(TearingTarget& target, std::unique_ptr<StagedChange> change)
        : target_(target), change_(std::move(change)) {}
    Result<CommitReport> commit() override {
      const auto done = change_->commit();
      target_.torn_ = true;
      return error(StatusCode::kNoSpace, "half of it is written");
    }
    Status undo() override { return change_->undo(); }

   private:
    TearingTarget& target_;
    std::unique_ptr<StagedChange> change_;
  };

  std::unique_ptr<WeightTarget> target_;
  bool torn_ = false;
};

TEST(ReceiverPause, AnEngineWithoutAVersionStaysPausedUntilItHasOne) {
  testing::PublishedRun run(testing::random_weights(1, 8));
  LoopbackHub hub({}, 1);
  const auto sender = hub.sender(0);
  const Deadline deadline = Deadline::after(milliseconds(5'000));
  ASSERT_TRUE(sender->announce(run_info_to_json(run.info()), deadline).ok());
  testing::send(*sender, run.step(1));
  testing::Weights held = run.weights[0];
  auto memory = make_memory_target(run.layout, testing::pointers(held), VersionId{}, 1);
  ASSERT_TRUE(memory.ok());
  TearingTarget target(std::move(*memory));
  int pauses = 0, resumes = 0;
  ReceiverOptions options;
  options.threads = 1;
  options.pause = [&] { return ++pauses, Status(); };
  options.resume = [&] { return ++resumes, Status(); };
  const auto road = hub.receiver();
  const auto receiver = Receiver::open(options, *road, target, deadline);
  ASSERT_TRUE(receiver.ok()) << receiver.status().to_string();
  ASSERT_TRUE((*receiver)->stage(deadline).ok());
  const auto committed = (*receiver)->commit();
  EXPECT_EQ(committed.status().code(), StatusCode::kNoSpace);
  EXPECT_NE(committed.status().message().find("left paused"), std::string::npos);
  EXPECT_EQ(pauses, 1);
  EXPECT_EQ(resumes, 0);
  target.can_recover = true;
  const auto staged = (*receiver)->stage(Deadline::after(milliseconds(0)));
  EXPECT_EQ(resumes, 1);
}

}  // namespace
}  // namespace driftless
