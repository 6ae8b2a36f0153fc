// SPDX-License-Identifier: Apache-2.0
// make_checkpoint_target(): writes versions into a local checkpoint directory through the patcher.
#include <filesystem>

#include "core/parallel.h"
#include "plugin/checkpoint/checkpoint_patcher.h"

namespace driftless {
namespace {

class CheckpointTarget final : public WeightTarget {
 public:
  CheckpointTarget(FileSystem& fs, std::string path, unsigned threads)
      : fs_(&fs), path_(std::move(path)), threads_(threads) {}

  Status open() {
    ApplyOptions options;
    options.threads = threads_;
    DRIFTLESS_ASSIGN_OR_RETURN(patcher_, CheckpointPatcher::open(*fs_, path_, options));
    DRIFTLESS_RETURN_IF_ERROR(prove());
    swept_ = patcher_->state().version;
    return {};
  }
  void set_proof(const ProofRule& rule) override { rule_ = rule; }

  [[nodiscard]] const WeightLayout* layout() const override {
    return &patcher_->checkpoint().layout();
  }
  Status adopt_layout(const WeightLayout& layout) override {
    return patcher_->adopt_layout(layout);
  }
  // The state does not record which tensors an earlier run wrote, so the new run must publish all
  // of them again.
  Status admit(const Hash128& run, const WeightLayout& layout) override {
    DRIFTLESS_RETURN_IF_ERROR(this->layout()->check_same(layout, path_, "the run"));
    admitted_ = run;
    return {};
  }

  [[nodiscard]] std::vector<std::string> left_alone() const override {
    return patcher_->state().left_alone;
  }
  [[nodiscard]] std::vector<LeftTensor> left_tensors() const override {
    return patcher_->left_tensors();
  }

  [[nodiscard]] TargetState state() const override {
    const CheckpointState& state = patcher_->state();
    return {{state.run, state.version}, state.digest.value_or(Digest()), proven_, false};
  }

  [[nodiscard]] std::string checkpoint_dir() const override {
    std::error_code failed;
    const std::filesystem::path whole = std::filesystem::absolute(path_, failed);
    return failed ? path_ : whole.string();
  }

  Status recover() override {
    const bool replaced = patcher_->check_files().code() == StatusCode::kMismatch;
    if (replaced) proven_ = false;
    if (proven_ || (!replaced && !patcher_->interrupted())) return {};
    if (replaced) DRIFTLESS_RETURN_IF_ERROR(patcher_->reopen());
    DRIFTLESS_RETURN_IF_ERROR(patcher_->recover());
    return prove();
  }

  Result<std::unique_ptr<StagedChange>> stage(std::vector<FetchedVersion> chain) override;

 private:
  class Change;

  // Reads the weights: their digest must be the state's, if the state has one.
  Status prove() {
    Status proof = patcher_->check_full(true);
    if (!proof.ok() && proof.code() != StatusCode::kMismatch) return proof;
    proven_ = proof.ok();
    return {};
  }

  // Reads all weights before a delta that comes a configured number of versions after the last
  // sweep: another process may have written into places that no version has changed since.
  Status sweep(const FetchedVersion& last) {
    const bool due = !rule_.always && rule_.every > 0 && proven_ &&
                     last.manifest.encoding != Encoding::kFull &&
                     last.manifest.id.version >= swept_ + rule_.every;
    if (!due) return {};
    const Status found = patcher_->check_full(true);
    proven_ = found.ok();
    swept_ = patcher_->state().version;
    return found;
  }

  FileSystem* fs_;
  std::string path_;
  unsigned threads_;
  ProofRule rule_;
  std::uint64_t swept_ = 0;  // the version at the last sweep
  std::unique_ptr<CheckpointPatcher> patcher_;
  bool proven_ = false;  // the weights are what the state says
  Hash128 admitted_;     // the run that may take it over; zero: none
  bool staged_ = false;  // an uncommitted Change exists: it owns the journal
};

class CheckpointTarget::Change final : public StagedChange {
 public:
  Change(CheckpointTarget& target, StagedApply staged, std::set<std::uint32_t> tensors)
      : target_(&target), staged_(std::move(staged)), tensors_(std::move(tensors)) {
    target_->staged_ = true;
  }
  Change(const Change&) = delete;
  Change& operator=(const Change&) = delete;
  ~Change() override {
    if (staged_) target_->staged_ = false;
  }

  Result<CommitReport> commit() override {
    if (!staged_) {
      return error(StatusCode::kInvalidArgument, target_->path_, ": was committed already");
    }
    const Result<AppliedVersion> applied = target_->patcher_->commit(std::move(*staged_));
    staged_.reset();
    target_->staged_ = false;
    if (!applied.ok()) {
      const bool whole = target_->proven_ && !target_->patcher_->interrupted() &&
                         target_->patcher_->check_files().ok();
      const bool other = applied.status().code() == StatusCode::kMismatch;
      target_->proven_ = whole && (!other || target_->patcher_->check_full(true).ok());
      return applied.status();
    }
    target_->proven_ = true;
    if (target_->rule_.always) {
      const Status found = target_->patcher_->check_full(true);
      target_->proven_ = found.ok();
      DRIFTLESS_RETURN_IF_ERROR(found.with_context("after the commit"));
    }
    return CommitReport{applied->version, *target_->patcher_->state().digest,
                        applied->changed_units, applied->commit_ms, tensors_};
  }

  Status undo() override {
    return error(StatusCode::kUnsupported, target_->path_,
                 ": a version written into a checkpoint cannot be taken back");
  }

 private:
  CheckpointTarget* target_;
  std::optional<StagedApply> staged_;
  std::set<std::uint32_t> tensors_;
};

Result<std::unique_ptr<StagedChange>> CheckpointTarget::stage(std::vector<FetchedVersion> chain) {
  if (staged_) {
    return error(StatusCode::kBusy, path_, ": a change is staged; commit or drop it first");
  }
  DRIFTLESS_RETURN_IF_ERROR(recover());
  DRIFTLESS_RETURN_IF_ERROR(check_chain(state(), *layout(), chain, admitted_));
  DRIFTLESS_RETURN_IF_ERROR(sweep(chain.back()));
  const Hash128& run = patcher_->state().run;
  const bool foreign = !run.is_zero() && chain.front().manifest.id.run != run;
  DRIFTLESS_ASSIGN_OR_RETURN(
      const std::vector<VersionSource> sources,
      open_chain(*fs_, std::move(chain), *layout(), join_path(path_, kSyncDirectory), threads_));
  DRIFTLESS_ASSIGN_OR_RETURN(StagedApply staged,
                             patcher_->stage(sources, foreign   ? BaseTrust::kForeign
                                                      : proven_ ? BaseTrust::kProven
                                                                : BaseTrust::kDamaged));
  return std::unique_ptr<StagedChange>(
      std::make_unique<Change>(*this, std::move(staged), changed_tensors(sources)));
}

}  // namespace

Result<std::unique_ptr<WeightTarget>> make_checkpoint_target(FileSystem& fs,
                                                             const std::string& checkpoint,
                                                             unsigned threads) {
  auto target = std::make_unique<CheckpointTarget>(fs, checkpoint,
                                                   threads == 0 ? default_threads() : threads);
  DRIFTLESS_RETURN_IF_ERROR(target->open());
  return std::unique_ptr<WeightTarget>(std::move(target));
}

}  // namespace driftless
