// SPDX-License-Identifier: Apache-2.0
// Which tensors a commit changes, and those tensors as a directory of their own: for engines that
// load any subset of a checkpoint (SGLang).
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "core/file_system.h"
#include "core/status.h"
#include "plugin/targets/weight_target.h"

namespace driftless {

// A target, looked through: changed() are the tensors of the last chain that was staged.
class WatchedTarget final : public WeightTarget {
 public:
  WatchedTarget(WeightTarget& target, unsigned threads) : target_(&target), threads_(threads) {}
  [[nodiscard]] const std::set<std::uint32_t>& changed() const { return changed_; }

  [[nodiscard]] const WeightLayout* layout() const override { return target_->layout(); }
  [[nodiscard]] Status adopt_layout(const WeightLayout& layout) override {
    return target_->adopt_layout(layout);
  }
  [[nodiscard]] std::vector<std::string> left_alone() const override {
    return target_->left_alone();
  }
  [[nodiscard]] TargetState state() const override { return target_->state(); }
  [[nodiscard]] Status recover() override { return target_->recover(); }
  void set_proof(const ProofRule& rule) override { target_->set_proof(rule); }
  [[nodiscard]] Result<std::unique_ptr<StagedChange>> stage(
      std::vector<FetchedVersion> chain) override;

 private:
  WeightTarget* target_;
  unsigned threads_;
  std::set<std::uint32_t> changed_;
};

// Writes those tensors of the checkpoint whole into `directory`, which appears complete. Nothing is
// written, and false returned, where they are the whole checkpoint.
[[nodiscard]] Result<bool> write_changed_tensors(FileSystem& fs, const std::string& checkpoint,
                                                 const std::set<std::uint32_t>& changed,
                                                 const std::string& directory);

// Ok where the model at `path` has all tensors of the checkpoint in the same shapes.
[[nodiscard]] Status check_same_shapes(FileSystem& fs, const std::string& path,
                                       const WeightLayout& layout);

}  // namespace driftless
