// SPDX-License-Identifier: Apache-2.0
// Adapters for the Python objects that a publisher uses: a weight source, and the group of its
// ranks. Also driftless.CheckpointSource.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <optional>

#include "collectives/group.h"
#include "module/errors.h"
#include "module/tensor_ref.h"
#include "plugin/publish/weight_source.h"

namespace driftless::python {

class LiveSource;
// Wraps a Python source. `object` is a CheckpointSource, or has the methods of WeightSource:
// tensors(), visit(), and optionally boxes() (for each tensor, None: all of it, or (offsets,
// sizes)) and left_to_others() (names). `failure`, which outlives the source, captures its
// exceptions. If tensors() raises, the source offers nothing: the publisher still reaches the
// collective calls, so that all ranks fail together. Make and destroy it with the GIL; its methods
// are called without it.
//
// `live` may be null. If `live` was made from `object`, and `waits` is false, queued GPU work may
// still write the offered tensors.
[[nodiscard]] std::shared_ptr<WeightSource> make_source(const py::object& object,
                                                        PythonFailure& failure,
                                                        const LiveSource* live = nullptr,
                                                        bool waits = true);

// The trainer's weights for a publisher without a snapshot. Holds the addresses of a source's
// tensors, and keeps the tensors alive. Make and destroy it with the GIL.
class LiveSource final : public WeightSource {
 public:
  // Visits `object`, a source as for make_source(), which may also have watched(): for each tensor,
  // whether code other than the optimizer writes it. Raises its exceptions.
  LiveSource(const py::object& object, PythonFailure& failure);
  [[nodiscard]] std::span<const TensorSpec> tensors() const override { return tensors_; }
  [[nodiscard]] std::span<const TensorBox> boxes() const override { return boxes_; }
  [[nodiscard]] bool watched(std::size_t tensor) const override { return watched_[tensor]; }
  [[nodiscard]] Status visit(
      const std::function<Status(std::span<const OfferedTensor>)>& use) override {
    return use(offered_);
  }
  [[nodiscard]] MemoryKind memory() const;  // kDevice if any tensor is on a GPU
  // Whether it was made from this object; tensors() and boxes() need no second call then.
  [[nodiscard]] bool made_of(const py::object& object) const { return object_.is(object); }
  // The new values of tensor `number`, for capture(). Raises if there are not as many as weights.
  [[nodiscard]] TensorRef new_values(std::size_t number, const py::object& tensor) const;

 private:
  py::object object_;
  std::vector<TensorSpec> tensors_;
  std::vector<TensorBox> boxes_;
  std::vector<bool> watched_;
  std::vector<TensorRef> refs_;
  std::vector<OfferedTensor> offered_;  // as tensors_
};

// Waits for the work on torch's current stream. Callers with other streams must wait for these.
void wait_for_gpu();
// torch's current stream, a cudaStream_t; null: the default stream.
[[nodiscard]] void* gpu_stream();

// The number of torch's current GPU; none: torch has used no GPU in this process.
[[nodiscard]] std::optional<int> torch_gpu();

// The group of publisher ranks in a job without MPI. `object` has rank, size,
// gather(bytes, timeout_s) and broadcast(bytes, timeout_s), and may have begin_epoch(number), or
// for_publisher(), which returns such an object for this publisher alone. Every message carries its
// epoch and number, so that ranks that fell out of step after a failure get an error instead of a
// wrong message. Make it with the GIL, and use it without.
[[nodiscard]] std::unique_ptr<Group> make_group(const py::object& object, PythonFailure& failure);

}  // namespace driftless::python
