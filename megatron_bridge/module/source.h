// SPDX-License-Identifier: Apache-2.0
// What Python gives a publisher: weights as a WeightSource, an object as the group of its ranks;
// and driftless.CheckpointSource.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <optional>

#include "collectives/group.h"
#include "module/errors.h"
#include "module/tensor_ref.h"
#include "plugin/publish/weight_source.h"

namespace driftless::python {

// `object` has tensors() and visit(), perhaps boxes() (of each tensor what is offered: None for all
// of it, or (offsets, sizes)) and left_to_others() (names), as WeightSource has them, or is a
// CheckpointSource. What it raises is captured by `failure`, which outlives the source. One that
// raises in tensors() offers nothing, so that the publisher still meets the other ranks and all of
// them fail together. Made and destroyed with the GIL; its methods are called without it.
class LiveSource;
// `live` may be null. If it was made of `object`, and without `waits`, work that is queued on the
// GPU may still write what is offered.
[[nodiscard]] std::shared_ptr<WeightSource> make_source(const py::object& object,
                                                        PythonFailure& failure,
                                                        const LiveSource* live = nullptr,
                                                        bool waits = true);

// The weights themselves, of a publisher without a snapshot: where the tensors of a source lie,
// which it holds. Made and destroyed with the GIL.
class LiveSource final : public WeightSource {
 public:
  // Visits `object`, as make_source() takes it, which may also have watched() (of each tensor,
  // whether others than capture() write it). Raises what it raises.
  LiveSource(const py::object& object, PythonFailure& failure);
  [[nodiscard]] std::span<const TensorSpec> tensors() const override { return tensors_; }
  [[nodiscard]] std::span<const TensorBox> boxes() const override { return boxes_; }
  [[nodiscard]] bool watched(std::size_t tensor) const override { return watched_[tensor]; }
  [[nodiscard]] Status visit(
      const std::function<Status(std::span<const OfferedTensor>)>& use) override {
    return use(offered_);
  }
  [[nodiscard]] MemoryKind memory() const;  // a GPU's if one tensor lies there
  // Whether it was made of this object, whose tensors() and boxes() are known then.
  [[nodiscard]] bool made_of(const py::object& object) const { return object_.is(object); }
  // What capture() compares tensor `number` with. Raises if it is not as large as that.
  [[nodiscard]] TensorRef new_values(std::size_t number, const py::object& tensor) const;

 private:
  py::object object_;
  std::vector<TensorSpec> tensors_;
  std::vector<TensorBox> boxes_;
  std::vector<bool> watched_;
  std::vector<TensorRef> refs_;
  std::vector<OfferedTensor> offered_;  // as tensors_
};

// What torch has queued on its current stream is done. Others see to that themselves.
void wait_for_gpu();
// That stream, a cudaStream_t; null: the default one.
[[nodiscard]] void* gpu_stream();

// The number of torch's current GPU; none: torch has used no GPU in this process.
[[nodiscard]] std::optional<int> torch_gpu();

// The group of publisher ranks in a job that no MPI launcher started. `object` has rank, size,
// gather(bytes, timeout_s) and broadcast(bytes, timeout_s), and may have begin_epoch(number), or
// for_publisher(), which returns such an object for this publisher alone. Every
// message carries its epoch and number, so that ranks that fell out of step after a failure are
// told and not mixed up. Made with the GIL, used without it.
[[nodiscard]] std::unique_ptr<Group> make_group(const py::object& object, PythonFailure& failure);

}  // namespace driftless::python
