// SPDX-License-Identifier: Apache-2.0
// Targets that Python makes: where a receiver keeps weights.
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

// Held by Python and by the receiver that uses it; destroyed with the GIL, as it may hold the
// memory of Python objects. What Python asks about it is answered from what refresh() saw last: a
// receiver may be at work on another thread.
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
  // With the GIL, by who uses the target, between two calls.
  // `replaced`: what is tracked may be other than the state tells.
  void refresh(bool replaced = false);
  // Reads all weights (MappedTarget::sweep()), between two calls of the receiver that uses it.
  [[nodiscard]] Shares sweep();
  // What lies there now, between two such calls (MappedTarget::look(), blocks(), copies()).
  [[nodiscard]] LookedShares look();
  [[nodiscard]] BlockSums blocks(const std::string& tensor, std::uint64_t block_units);
  [[nodiscard]] std::vector<HeldCopy> copies(const std::string& tensor, std::uint64_t first,
                                             std::uint64_t count);
  // MappedTarget::tracked().
  [[nodiscard]] const Shares& tracked() const { return tracked_; }
  // Where the weights lie on a GPU: its library, and a wait for what the engine has queued on them.
  // Else null, and nothing.
  [[nodiscard]] virtual const DeviceTable* device() const { return nullptr; }
  [[nodiscard]] virtual Status wait_for_stream() const { return {}; }
  // The GPU that the weights lie on; none: in host memory.
  [[nodiscard]] virtual std::optional<int> gpu() const { return std::nullopt; }
  // Held by the receiver that uses it.
  [[nodiscard]] InUse& in_use() { return in_use_; }
  // What that receiver is in, while it works; null once it is gone.
  void set_user(InUse* user) { user_ = user; }

 private:
  // Weights in memory are read by `read(target)`.
  template <typename Read>
  auto read_now(const Read& read);
  [[nodiscard]] std::uint32_t number_of(const std::string& tensor) const;

  std::shared_ptr<WeightTarget> target_;
  std::vector<TensorRef> tensors_;
  TargetState state_;
  Shares tracked_;
  std::optional<WeightLayout> layout_;  // a copy: a run may publish less than was held
  InUse in_use_;
  InUse* user_ = nullptr;
};

}  // namespace driftless::python
