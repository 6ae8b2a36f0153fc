// SPDX-License-Identifier: Apache-2.0
#include "module/source.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <tuple>
#include <utility>

#include "core/file_system.h"
#include "module/bindings.h"
#include "module/tensor_ref.h"

namespace driftless::python {
namespace {

constexpr std::string_view kSource = "the weight source";

MemoryKind memory_of(const TensorRef& ref) {
  return ref.on_host() ? MemoryKind::kHost : MemoryKind::kDevice;
}

using Sizes = std::vector<std::uint64_t>;

class PythonSource final : public WeightSource {
 public:
  PythonSource(py::object object, PythonFailure& failure)
      : object_(std::move(object)), failure_(&failure) {
    try {
      for (const py::handle spec : object_.attr("tensors")()) {
        tensors_.push_back(spec.cast<const TensorSpec&>());
      }
      if (py::hasattr(object_, "boxes")) take_boxes();
      if (py::hasattr(object_, "left_to_others")) {
        left_ = object_.attr("left_to_others")().cast<std::vector<std::string>>();
      }
      if (py::hasattr(object_, "companions_dir")) {
        companions_dir_ = path_of(object_.attr("companions_dir"));
      }
    } catch (...) {
      broken_ = failure_->capture(kSource);
      tensors_.clear();
      boxes_.clear();
      left_.clear();
    }
  }

  // For a source whose tensors `live` already knows. Without `waits`, queued GPU work may still
  // write the offered tensors.
  PythonSource(py::object object, PythonFailure& failure, const LiveSource& live, bool waits)
      : object_(std::move(object)),
        failure_(&failure),
        waits_(waits),
        tensors_(live.tensors().begin(), live.tensors().end()),
        boxes_(live.boxes().begin(), live.boxes().end()) {}

  [[nodiscard]] std::span<const TensorSpec> tensors() const override { return tensors_; }
  [[nodiscard]] std::span<const TensorBox> boxes() const override { return boxes_; }
  [[nodiscard]] std::span<const std::string> left_to_others() const override { return left_; }
  [[nodiscard]] std::string companions_dir() const override { return companions_dir_; }
  // Keeps the tensors of all batches alive in `refs`.
  void hold_in(std::vector<TensorRef>& refs) { held_ = &refs; }

  [[nodiscard]] Status visit(
      const std::function<Status(std::span<const OfferedTensor>)>& use) override {
    DRIFTLESS_RETURN_IF_ERROR(broken_);
    const py::gil_scoped_acquire acquired;
    try {
      std::vector<bool> seen(tensors_.size());
      for (const py::handle batch : py::iter(object_.attr("visit")())) {
        DRIFTLESS_RETURN_IF_ERROR(offer(batch, seen, use));
      }
      return check_complete(seen);
    } catch (...) {
      return failure_->capture(kSource);
    }
  }

 private:
  void take_boxes() {
    for (const py::handle entry : object_.attr("boxes")()) {
      TensorBox box;
      if (!entry.is_none()) {
        std::tie(box.offsets, box.sizes) = entry.cast<std::pair<Sizes, Sizes>>();
      }
      boxes_.push_back(std::move(box));
    }
    if (boxes_.empty() || boxes_.size() == tensors_.size()) return;
    fail(StatusCode::kInvalidArgument, "boxes() has ", boxes_.size(), " entries for ",
         tensors_.size(), " tensors");
  }

  // Checks the offered box like a tensor of its own.
  [[nodiscard]] Status check_offered(const TensorRef& ref, std::size_t index) const {
    const TensorSpec& spec = tensors_[index];
    if (boxes_.empty() || boxes_[index].whole()) return check_tensor(ref, spec);
    DRIFTLESS_ASSIGN_OR_RETURN(const TensorSpec part,
                               TensorSpec::make(concat(spec.name, boxes_[index].to_string()),
                                                spec.dtype, boxes_[index].sizes));
    return check_tensor(ref, part);
  }

  // Passes one batch to `use`, and keeps its tensors alive until `use` returns.
  [[nodiscard]] Status offer(
      const py::handle& batch, std::vector<bool>& seen,
      const std::function<Status(std::span<const OfferedTensor>)>& use) const {
    std::vector<TensorRef> refs;
    std::vector<OfferedTensor> offered;
    bool on_gpu = false;
    for (const py::handle entry : batch) {
      const auto pair = entry.cast<py::tuple>();
      if (pair.size() != 2) {
        fail(StatusCode::kInvalidArgument,
             "visit() yields lists of (index, tensor), found a tuple of ", pair.size());
      }
      const auto index = pair[0].cast<std::size_t>();
      if (index >= tensors_.size()) {
        fail(StatusCode::kInvalidArgument, "visit() offers tensor number ", index, " of ",
             tensors_.size());
      }
      const TensorSpec& spec = tensors_[index];
      if (seen[index]) {
        fail(StatusCode::kInvalidArgument, "visit() offers tensor '", spec.name, "' twice");
      }
      seen[index] = true;
      const TensorRef& ref = refs.emplace_back(tensor_ref(pair[1], spec.name));
      check(check_offered(ref, index));
      offered.push_back({index, ref.data, memory_of(ref)});
      on_gpu = on_gpu || !ref.on_host();
    }
    if (on_gpu && waits_) wait_for_gpu();
    if (held_ != nullptr) held_->insert(held_->end(), refs.begin(), refs.end());
    const py::gil_scoped_release released;
    return use(offered);
  }

  // Refuses a visit that left out a tensor, which would look unchanged.
  [[nodiscard]] Status check_complete(const std::vector<bool>& seen) const {
    const auto missing = std::find(seen.begin(), seen.end(), false);
    if (missing == seen.end()) return {};
    return error(StatusCode::kInvalidArgument, "visit() ended without tensor '",
                 tensors_[static_cast<std::size_t>(missing - seen.begin())].name, "'");
  }

  py::object object_;
  PythonFailure* failure_;
  bool waits_ = true;
  std::vector<TensorSpec> tensors_;
  std::vector<TensorBox> boxes_;  // empty: all tensors are whole
  std::vector<std::string> left_;
  std::string companions_dir_;
  Status broken_;
  std::vector<TensorRef>* held_ = nullptr;
};

// A checkpoint and a source that reads it, as one object for Python.
class HeldCheckpoint final : public WeightSource {
 public:
  HeldCheckpoint(Checkpoint checkpoint, unsigned stage, unsigned stages)
      : checkpoint_(std::move(checkpoint)), source_(checkpoint_, stage, stages) {}
  HeldCheckpoint(const HeldCheckpoint&) = delete;
  HeldCheckpoint& operator=(const HeldCheckpoint&) = delete;
  [[nodiscard]] std::span<const TensorSpec> tensors() const override { return source_.tensors(); }
  [[nodiscard]] Status visit(
      const std::function<Status(std::span<const OfferedTensor>)>& use) override {
    return source_.visit(use);
  }
  [[nodiscard]] std::string companions_dir() const override { return checkpoint_.directory(); }
  [[nodiscard]] const Checkpoint& checkpoint() const { return checkpoint_; }
  [[nodiscard]] const WeightLayout& layout() const { return checkpoint_.layout(); }
  [[nodiscard]] const std::string& path() const { return checkpoint_.path(); }

 private:
  Checkpoint checkpoint_;
  CheckpointSource source_;
};

class PythonGroup final : public Group {
 public:
  PythonGroup(py::object object, PythonFailure& failure)
      : object_(py::hasattr(object, "for_publisher") ? object.attr("for_publisher")()
                                                     : std::move(object)),
        failure_(&failure),
        rank_(object_.attr("rank").cast<unsigned>()),
        size_(object_.attr("size").cast<unsigned>()) {
    if (size_ == 0 || rank_ >= size_) {
      fail(StatusCode::kInvalidArgument, "the group has rank ", rank_, " of ", size_);
    }
    begin_epoch(0);  // the epoch in which a publisher opens
  }
  PythonGroup(const PythonGroup&) = delete;
  PythonGroup& operator=(const PythonGroup&) = delete;
  ~PythonGroup() override {  // NOLINT(bugprone-exception-escape): only without an interpreter
    const py::gil_scoped_acquire acquired;
    object_ = py::object();
  }

  [[nodiscard]] unsigned rank() const override { return rank_; }
  [[nodiscard]] unsigned size() const override { return size_; }

  void begin_epoch(std::uint64_t epoch) override {
    mark_ = {epoch, 0};
    const py::gil_scoped_acquire acquired;
    try {
      if (py::hasattr(object_, "begin_epoch")) object_.attr("begin_epoch")(epoch);
    } catch (...) {
      const Status raised = failure_->capture("the group's begin_epoch()");
    }
  }

  [[nodiscard]] Result<std::vector<std::string>> gather(std::string_view message,
                                                        const Deadline& deadline) override {
    ++mark_.operation;
    const py::gil_scoped_acquire acquired;
    try {
      const py::object answer = call("gather", message, deadline);
      std::vector<std::string> messages;
      if (rank_ != 0) return messages;
      for (const py::handle part : answer) {
        messages.push_back(take(unmarked(part.cast<std::string>())));
      }
      if (messages.size() == size_) return messages;
      return error(StatusCode::kInvalidArgument, "the group's gather() returned ", messages.size(),
                   " messages on rank 0, expected ", size_);
    } catch (...) {
      return failure_->capture("the group's gather()");
    }
  }

  [[nodiscard]] Result<std::string> broadcast(std::string_view message,
                                              const Deadline& deadline) override {
    ++mark_.operation;
    const py::gil_scoped_acquire acquired;
    try {
      const py::object answer = call("broadcast", rank_ == 0 ? message : "", deadline);
      return unmarked(answer.cast<std::string>());
    } catch (...) {
      return failure_->capture("the group's broadcast()");
    }
  }

 private:
  struct Mark {
    std::uint64_t epoch = 0;
    std::uint64_t operation = 0;
  };

  [[nodiscard]] py::object call(const char* method, std::string_view message,
                                const Deadline& deadline) const {
    std::string bytes(reinterpret_cast<const char*>(&mark_), sizeof(mark_));
    bytes.append(message);
    const double seconds = std::chrono::duration<double>(deadline.remaining()).count();
    return object_.attr(method)(py::bytes(bytes), seconds);
  }

  [[nodiscard]] Result<std::string> unmarked(const std::string& bytes) const {
    Mark theirs;
    if (bytes.size() < sizeof(theirs)) {
      return error(StatusCode::kCorrupt, "publisher rank ", rank_, " received a message of ",
                   bytes.size(), " bytes, expected at least ", sizeof(theirs));
    }
    std::memcpy(&theirs, bytes.data(), sizeof(theirs));
    if (theirs.epoch != mark_.epoch || theirs.operation != mark_.operation) {
      return error(StatusCode::kIo, "publisher rank ", rank_, " is at message ", mark_.epoch, ".",
                   mark_.operation, " and received message ", theirs.epoch, ".", theirs.operation,
                   ": the ranks are out of step after a failure");
    }
    return bytes.substr(sizeof(theirs));
  }

  py::object object_;
  PythonFailure* failure_;
  unsigned rank_, size_;
  Mark mark_;
};

std::shared_ptr<HeldCheckpoint> open_checkpoint(const py::object& path, unsigned stage,
                                                unsigned stages) {
  if (stages == 0 || stage >= stages) {
    fail(StatusCode::kInvalidArgument, "stage ", stage, " of ", stages,
         ": expected a stage below the number of stages");
  }
  const std::string name = path_of(path);
  const py::gil_scoped_release released;
  return std::make_shared<HeldCheckpoint>(take(Checkpoint::open(posix_file_system(), name)), stage,
                                          stages);
}

// A read-only tensor of the mapped file, which it keeps mapped.
TensorRef tensor_of(const std::shared_ptr<HeldCheckpoint>& held, const std::string& name) {
  const std::optional<std::uint32_t> index = held->layout().find(name);
  if (!index) {
    fail(StatusCode::kNotFound, held->path(), " has no tensor '", name, "'");
  }
  const TensorView view = held->checkpoint().tensor(*index);
  return TensorRef::read_only_of(*view.spec, view.data, held);
}

py::object torch_stream() {
  const py::dict modules = py::module_::import("sys").attr("modules");
  if (!modules.contains("torch")) return py::none();
  return py::module_::import("torch").attr("cuda").attr("current_stream")();
}

}  // namespace

std::shared_ptr<WeightSource> make_source(const py::object& object, PythonFailure& failure,
                                          const LiveSource* live, bool waits) {
  if (py::isinstance<HeldCheckpoint>(object)) {
    return object.cast<std::shared_ptr<HeldCheckpoint>>();
  }
  if (live != nullptr && live->made_of(object)) {
    return std::make_shared<PythonSource>(object, failure, *live, waits);
  }
  return std::make_shared<PythonSource>(object, failure);
}

void wait_for_gpu() {
  const py::object stream = torch_stream();
  if (!stream.is_none()) stream.attr("synchronize")();
}

void* gpu_stream() {
  const py::object stream = torch_stream();
  if (stream.is_none()) return nullptr;
  // NOLINTNEXTLINE(performance-no-int-to-ptr): as torch says it
  return reinterpret_cast<void*>(stream.attr("cuda_stream").cast<std::uintptr_t>());
}

std::optional<int> torch_gpu() {
  const py::dict modules = py::module_::import("sys").attr("modules");
  if (!modules.contains("torch")) return std::nullopt;
  const py::object cuda = py::module_::import("torch").attr("cuda");
  if (!cuda.attr("is_initialized")().cast<bool>()) return std::nullopt;
  return cuda.attr("current_device")().cast<int>();
}

LiveSource::LiveSource(const py::object& object, PythonFailure& failure) : object_(object) {
  if (py::isinstance<HeldCheckpoint>(object)) {
    fail(StatusCode::kInvalidArgument,
         "snapshot: none reads the trainer's own weights: pass live=, a source that offers them");
  }
  PythonSource source(object, failure);
  source.hold_in(refs_);
  const Status visited = source.visit([&](std::span<const OfferedTensor> batch) {
    offered_.insert(offered_.end(), batch.begin(), batch.end());
    return Status();
  });
  if (!visited.ok()) failure.rethrow();
  check(visited);
  tensors_.assign(source.tensors().begin(), source.tensors().end());
  boxes_.assign(source.boxes().begin(), source.boxes().end());
  std::ranges::sort(offered_, {}, &OfferedTensor::tensor);
  if (py::hasattr(object, "watched")) {
    watched_ = object.attr("watched")().cast<std::vector<bool>>();
  }
  watched_.resize(tensors_.size());
}

MemoryKind LiveSource::memory() const {
  const bool on_gpu = std::ranges::any_of(
      offered_, [](const OfferedTensor& each) { return each.memory == MemoryKind::kDevice; });
  return on_gpu ? MemoryKind::kDevice : MemoryKind::kHost;
}

TensorRef LiveSource::new_values(std::size_t number, const py::object& tensor) const {
  if (number >= tensors_.size()) {
    fail(StatusCode::kInvalidArgument, "capture() of item ", number, " of ", tensors_.size());
  }
  const TensorSpec& spec = tensors_[number];
  TensorRef ref = tensor_ref(tensor, spec.name);
  const BlockPlace place = take(place_of(spec, boxes_.empty() ? TensorBox() : boxes_[number]));
  if (ref.plain_bits && unit_bytes(ref.dtype) == unit_bytes(spec.dtype)) ref.dtype = spec.dtype;
  if (units_of(ref) == place.units) return ref;
  fail(StatusCode::kInvalidArgument, "capture() of item ", number, ", tensor '", spec.name,
       "': ", units_of(ref), " new values for ", place.units, " weights");
}

std::unique_ptr<Group> make_group(const py::object& object, PythonFailure& failure) {
  return std::make_unique<PythonGroup>(object, failure);
}

void bind_source(py::module_& module) {
  py::class_<HeldCheckpoint, std::shared_ptr<HeldCheckpoint>> checkpoint(
      module, "CheckpointSource", "Tensors of a checkpoint: those of stage `stage` of `stages`.");
  def_fields(checkpoint, "layout", &HeldCheckpoint::layout, "path", &HeldCheckpoint::path);
  checkpoint
      .def(py::init(&open_checkpoint), py::arg("path"), py::arg("stage") = 0, py::arg("stages") = 1)
      .def("tensors",
           [](HeldCheckpoint& held) {
             const std::span<const TensorSpec> tensors = held.tensors();
             return std::vector<TensorSpec>(tensors.begin(), tensors.end());
           })
      .def("visit",
           [](const std::shared_ptr<HeldCheckpoint>& held) {
             py::list batch;
             std::size_t index = 0;
             for (const TensorSpec& spec : held->tensors()) {
               batch.append(py::make_tuple(index++, tensor_of(held, spec.name)));
             }
             py::list batches;
             batches.append(batch);
             return py::iter(batches);
           })
      .def("tensor", &tensor_of, py::arg("name"));
}

}  // namespace driftless::python
