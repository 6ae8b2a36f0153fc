// SPDX-License-Identifier: Apache-2.0
// The weights of an engine that moves its tensors and computes others from them.
//
// It is a MappedTarget that another one can replace: when the engine has put its tensors elsewhere,
// maps traced again take the place of the old ones, under the receiver that uses the target. What
// was staged or committed through the old maps can neither be committed nor be taken back then.
//
// After each commit, and after each that was taken back, `written` is called, before the engine
// goes on: it computes again what the engine derives from its weights. If it fails, the commit is
// taken back.
#pragma once

#include <functional>
#include <memory>
#include <mutex>

#include "plugin/targets/weight_target.h"

namespace driftless::python {

class FollowedTarget final : public MappedTarget {
 public:
  using Written = std::function<Status()>;  // may be empty

  FollowedTarget(std::shared_ptr<MappedTarget> target, Written written);
  // Any thread, but not during a commit: the engine must not use the tensors.
  void replace(std::shared_ptr<MappedTarget> target, Written written);

  [[nodiscard]] const WeightLayout* layout() const override;
  Status adopt_layout(const WeightLayout& layout) override;
  [[nodiscard]] TargetState state() const override;
  [[nodiscard]] std::vector<std::string> left_alone() const override;
  Status recover() override;
  void set_proof(const ProofRule& rule) override;
  Result<std::unique_ptr<StagedChange>> stage(std::vector<FetchedVersion> chain) override;
  [[nodiscard]] bool proven() const override;
  [[nodiscard]] bool proven_in_share() const override;
  [[nodiscard]] Result<Shares> sweep() override;
  [[nodiscard]] const Shares& tracked() const override;
  [[nodiscard]] Result<LookedShares> look() const override;
  [[nodiscard]] Result<BlockSums> blocks(std::uint32_t tensor,
                                         std::uint64_t block_units) const override;
  [[nodiscard]] Result<std::vector<HeldCopy>> copies(std::uint32_t tensor, std::uint64_t first,
                                                     std::uint64_t count) const override;
  [[nodiscard]] StagingMemory staging_memory() const override;
  [[nodiscard]] Status read(std::size_t tensor, std::uint64_t byte_offset,
                            std::span<std::byte> out) const override;
  [[nodiscard]] std::span<const std::byte> tensor(std::size_t index) const override;

  struct Current {
    std::shared_ptr<MappedTarget> target;
    Written written;
    bool stale = false;  // what the engine derives from the weights is not of their version
  };

 private:
  [[nodiscard]] std::shared_ptr<Current> current() const;

  mutable std::mutex mutex_;
  ProofRule proof_;
  std::shared_ptr<Current> current_;
};

}  // namespace driftless::python
