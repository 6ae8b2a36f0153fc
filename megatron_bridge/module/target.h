// SPDX-License-Identifier: Apache-2.0
// Targets that Python makes, into which a receiver writes versions.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "module/job.h"
#include "module/tensor_ref.h"
#include "plugin/job/on_demand/device_access.h"
#include "plugin/targets/weight_target.h"

namespace driftless::python {

// Python and the receiver share it. Destroy it with the GIL, because it may keep Python objects
// alive. Python's queries get the state that refresh() copied last, because the receiver may be
// working on another thread.
class HeldTarget {
 public:
  explicit HeldTarget(std::shared_ptr<WeightTarget> target, std::vector<TensorRef> tensors = {})
      : target_(std::move(target)), tensors_(std::move(tensors)) {
    refresh();
  }
  HeldTarget(const HeldTarget&) = delete;
  HeldTarget& operator=(const HeldTarget&) = delete;
  virtual ~HeldTarget() = default;

  [[nodiscard]] WeightTarget& target() { return *target_; }
  [[nodiscard]] const TargetState& state() const { return state_; }
  [[nodiscard]] const WeightLayout* layout() const { return layout_ ? &*layout_ : nullptr; }
  // The receiver that uses the target calls it between two calls, with the GIL. `replaced`: copies
  // the tracked shares even if the state is unchanged.
  void refresh(bool replaced = false);
  // Reads all weights (MappedTarget::sweep()). Only between two calls of the receiver.
  [[nodiscard]] Shares sweep();
  // Read the weights whatever the state is (MappedTarget::look(), blocks(), copies()). Only between
  // two calls of the receiver.
  [[nodiscard]] LookedShares look();
  [[nodiscard]] BlockSums blocks(const std::string& tensor, std::uint64_t block_units);
  [[nodiscard]] std::vector<HeldCopy> copies(const std::string& tensor, std::uint64_t first,
                                             std::uint64_t count);
  // MappedTarget::tracked().
  [[nodiscard]] const Shares& tracked() const { return tracked_; }
  // If the weights are on a GPU: the table of its functions, and a wait for the engine's queued
  // work on them. Otherwise null, and no wait.
  [[nodiscard]] virtual const DeviceTable* device() const { return nullptr; }
  [[nodiscard]] virtual Status wait_for_stream() const { return {}; }
  // The GPU that holds the weights; none: they are in host memory.
  [[nodiscard]] virtual std::optional<int> gpu() const { return std::nullopt; }
  // The receiver that uses the target holds this turn.
  [[nodiscard]] InUse& in_use() { return in_use_; }
  // The turn of that receiver's calls; null if no receiver uses the target.
  void set_user(InUse* user) { user_ = user; }

 private:
  // Calls `read(target)` for a target in memory; fails for a checkpoint directory.
  template <typename Read>
  auto read_now(const Read& read);
  [[nodiscard]] std::uint32_t number_of(const std::string& tensor) const;

  std::shared_ptr<WeightTarget> target_;
  std::vector<TensorRef> tensors_;
  TargetState state_;
  Shares tracked_;
  std::optional<WeightLayout> layout_;  // a copy: a run may publish fewer tensors
  InUse in_use_;
  InUse* user_ = nullptr;
};

}  // namespace driftless::python
