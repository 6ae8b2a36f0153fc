// SPDX-License-Identifier: Apache-2.0
#include "module/followed_target.h"

#include <utility>

namespace driftless::python {
namespace {

using Current = FollowedTarget::Current;

class FollowedChange final : public StagedChange {
 public:
  FollowedChange(std::unique_ptr<StagedChange> change, std::shared_ptr<Current> of,
                 std::function<bool(const Current*)> is_current)
      : of_(std::move(of)), is_current_(std::move(is_current)), change_(std::move(change)) {}

  Result<CommitReport> commit() override {
    DRIFTLESS_RETURN_IF_ERROR(check_current());
    Result<CommitReport> done = change_->commit();
    if (!done.ok()) return done;
    const Status written = call_written();
    if (written.ok()) return done;
    if (const Status back = undo(); !back.ok()) {
      of_->stale = true;
      return written.with_context(
          concat("the commit could not be taken back (", back.message(),
                 "), and the weights hold no version; send a full one, or reload them"));
    }
    return written.with_context("all was undone");
  }

  Status undo() override {
    DRIFTLESS_RETURN_IF_ERROR(check_current());
    DRIFTLESS_RETURN_IF_ERROR(change_->undo());
    return call_written();
  }

 private:
  [[nodiscard]] Status check_current() const {
    if (is_current_(of_.get())) return {};
    return error(StatusCode::kBusy,
                 "the engine's tensors were traced again since this was staged; stage again");
  }
  // What is derived is of the weights' version if it succeeds.
  [[nodiscard]] Status call_written() {
    const Status status = of_->written ? of_->written() : Status();
    of_->stale = !status.ok();
    return status;
  }

  std::shared_ptr<Current> of_;
  std::function<bool(const Current*)> is_current_;
  std::unique_ptr<StagedChange> change_;  // goes before what it changes
};

}  // namespace

FollowedTarget::FollowedTarget(std::shared_ptr<MappedTarget> target, Written written) {
  replace(std::move(target), std::move(written));
}

void FollowedTarget::replace(std::shared_ptr<MappedTarget> target, Written written) {
  auto fresh = std::make_shared<Current>();
  fresh->target = std::move(target);
  fresh->written = std::move(written);
  const std::scoped_lock lock(mutex_);
  fresh->target->set_proof(proof_);
  current_.swap(fresh);
}

std::shared_ptr<FollowedTarget::Current> FollowedTarget::current() const {
  const std::scoped_lock lock(mutex_);
  return current_;
}

bool FollowedTarget::proven() const { return current()->target->proven(); }
const WeightLayout* FollowedTarget::layout() const { return current()->target->layout(); }
Status FollowedTarget::adopt_layout(const WeightLayout& layout) {
  return current()->target->adopt_layout(layout);
}

TargetState FollowedTarget::state() const {
  const std::shared_ptr<Current> now = current();
  TargetState state = now->target->state();
  state.valid = state.valid && !now->stale;
  return state;
}

std::vector<std::string> FollowedTarget::left_alone() const {
  return current()->target->left_alone();
}

void FollowedTarget::set_proof(const ProofRule& rule) {
  const std::scoped_lock lock(mutex_);
  proof_ = rule;
  current_->target->set_proof(rule);
}

bool FollowedTarget::proven_in_share() const { return current()->target->proven_in_share(); }
Result<Shares> FollowedTarget::sweep() { return current()->target->sweep(); }
const Shares& FollowedTarget::tracked() const { return current()->target->tracked(); }
Result<LookedShares> FollowedTarget::look() const { return current()->target->look(); }
Result<BlockSums> FollowedTarget::blocks(std::uint32_t tensor, std::uint64_t block_units) const {
  return current()->target->blocks(tensor, block_units);
}
Result<std::vector<HeldCopy>> FollowedTarget::copies(std::uint32_t tensor, std::uint64_t first,
                                                     std::uint64_t count) const {
  return current()->target->copies(tensor, first, count);
}
StagingMemory FollowedTarget::staging_memory() const { return current()->target->staging_memory(); }
Status FollowedTarget::read(std::size_t tensor, std::uint64_t byte_offset,
                            std::span<std::byte> out) const {
  return current()->target->read(tensor, byte_offset, out);
}
std::span<const std::byte> FollowedTarget::tensor(std::size_t index) const {
  return current()->target->tensor(index);
}

Status FollowedTarget::recover() { return current()->target->recover(); }

Result<std::unique_ptr<StagedChange>> FollowedTarget::stage(std::vector<FetchedVersion> chain) {
  std::shared_ptr<Current> now = current();
  DRIFTLESS_ASSIGN_OR_RETURN(std::unique_ptr<StagedChange> change,
                             now->target->stage(std::move(chain)));
  const auto is_current = [this](const Current* of) { return current().get() == of; };
  return std::unique_ptr<StagedChange>(
      std::make_unique<FollowedChange>(std::move(change), std::move(now), is_current));
}

}  // namespace driftless::python
