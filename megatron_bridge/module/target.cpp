// SPDX-License-Identifier: Apache-2.0
#include "module/target.h"

#include <pybind11/stl.h>

#include <map>
#include <span>
#include <tuple>

#include "core/file_system.h"
#include "core/thread_gpu.h"
#include "module/bindings.h"
#include "module/device_kernels.h"
#include "plugin/targets/mapped_target.h"

namespace driftless::python {
namespace {

// Where the caller's tensors are: all in host memory, or all on one GPU.
struct Place {
  const DeviceTable* table = nullptr;  // null: in host memory
  int device = 0;
  void* stream = nullptr;

  [[nodiscard]] Status wait() const {
    return table == nullptr ? Status() : table->wait(device, std::span(&stream, 1));
  }
};

class MemoryHolder final : public HeldTarget {
 public:
  MemoryHolder(std::shared_ptr<WeightTarget> target, std::vector<TensorRef> tensors,
               const Place& place)
      : HeldTarget(std::move(target), std::move(tensors)), place_(place) {}
  [[nodiscard]] const DeviceTable* device() const override { return place_.table; }
  [[nodiscard]] Status wait_for_stream() const override { return place_.wait(); }
  [[nodiscard]] std::optional<int> gpu() const override {
    return place_.table == nullptr ? std::nullopt : std::optional(place_.device);
  }

 private:
  Place place_;
};
struct CheckpointHolder final : HeldTarget {
  using HeldTarget::HeldTarget;
};
class OwnedHolder final : public HeldTarget {
 public:
  explicit OwnedHolder(std::shared_ptr<MappedTarget> weights)
      : HeldTarget(weights), weights_(std::move(weights)) {}

  // The result keeps the memory alive, even after the target is destroyed.
  [[nodiscard]] TensorRef tensor(const std::string& name) const {
    if (layout() == nullptr) {
      fail(StatusCode::kNotFound, "the target has no layout yet: open a receiver on it first");
    }
    const std::optional<std::uint32_t> index = layout()->find(name);
    if (!index) fail(StatusCode::kNotFound, "there is no tensor '", name, "'");
    return TensorRef::read_only_of((*layout())[*index], weights_->tensor(*index).data(), weights_);
  }

 private:
  std::shared_ptr<MappedTarget> weights_;
};

std::optional<VersionId> initial_of(const std::optional<std::string>& run,
                                    std::optional<std::uint64_t> version) {
  if (!version) {
    if (!run) return std::nullopt;
    fail(StatusCode::kInvalidArgument, "run= without version=: pass the version of the tensors");
  }
  VersionId id;
  id.version = *version;
  if (run) id.run = take(hash128_from_hex(*run));
  return id;
}

TensorSpec spec_of(const TensorRef& ref, const std::string& name,
                   const std::map<std::string, std::string>& dtypes) {
  const auto named = dtypes.find(name);
  const DType dtype = named == dtypes.end() ? ref.dtype : take(parse_dtype(named->second));
  TensorSpec spec = take(TensorSpec::make(name, dtype, ref.shape));
  check(check_tensor(ref, spec));
  return spec;
}

// The common place of all tensors; fails if they have none.
Place place_of(const std::map<std::string, TensorRef>& refs, const StreamNumber& stream) {
  if (refs.empty() || refs.begin()->second.on_host()) {
    for (const auto& [name, ref] : refs) check(check_on_host(ref, name));
    return {};
  }
  const auto& [first_name, first] = *refs.begin();
  const std::string device = first.device_name;
  const auto where = [&device](const std::string& name) {
    return concat("tensor '", name, "' is on ", device);
  };
  const Result<const DeviceTable*> table = device_table();
  check(table.status().with_context(where(first_name)));
  const KeepThreadGpu keep;
  check((*table)->check(first.device_number).with_context(where(first_name)));
  for (const auto& [name, ref] : refs) {
    if (ref.device_name != device) {
      fail(StatusCode::kUnsupported, "tensor '", name, "' is on ", ref.device_name, ", but '",
           first_name, "' is on ", device, ": expected all tensors of a target in one place");
    }
    if (ref.size_bytes == 0) continue;
    check((*table)->check_memory(ref.data, ref.device_number).with_context(where(name)));
  }
  return {*table, first.device_number, stream_of(stream)};
}

Result<std::unique_ptr<MappedTarget>> make_target(const WeightLayout& layout,
                                                  const std::vector<std::byte*>& data,
                                                  const std::optional<VersionId>& initial,
                                                  unsigned threads, const Place& place) {
  std::shared_ptr<WeightMemory> memory;
  if (place.table != nullptr) {
    DRIFTLESS_RETURN_IF_ERROR(place.wait());
    DRIFTLESS_ASSIGN_OR_RETURN(memory, place.table->make_memory(place.device));
  }
  return make_memory_target(layout, data, initial, threads, std::move(memory));
}

std::shared_ptr<MemoryHolder> make_memory(const py::object& mapping,
                                          const std::optional<std::string>& run,
                                          std::optional<std::uint64_t> version,
                                          const std::map<std::string, std::string>& dtypes,
                                          unsigned threads, const StreamNumber& stream) {
  const py::dict tensors(mapping);
  std::map<std::string, TensorRef> refs;
  std::vector<TensorSpec> specs;
  for (const auto& [key, value] : tensors) {
    const auto name = key.cast<std::string>();
    TensorRef ref = tensor_ref(py::reinterpret_borrow<py::object>(value), name);
    specs.push_back(spec_of(ref, name, dtypes));
    check(check_writable(ref, name));
    refs.emplace(name, std::move(ref));
  }
  for (const auto& [name, dtype] : dtypes) {
    if (!refs.contains(name)) {
      fail(StatusCode::kInvalidArgument, "dtypes names '", name,
           "', which is not among the tensors");
    }
  }
  const WeightLayout layout = take(WeightLayout::make(std::move(specs)));
  const Place place = place_of(refs, stream);
  std::vector<std::byte*> data;
  std::vector<TensorRef> held;
  for (auto& [name, ref] : refs) {  // in the order of names, as the layout
    data.push_back(ref.data);
    held.push_back(std::move(ref));
  }
  const std::optional<VersionId> initial = initial_of(run, version);
  std::unique_ptr<MappedTarget> made =
      take(without_gil([&] { return make_target(layout, data, initial, threads, place); }));
  return std::make_shared<MemoryHolder>(std::move(made), std::move(held), place);
}

std::shared_ptr<OwnedHolder> make_owned(const py::object& base, unsigned threads) {
  std::optional<std::string> path;
  if (!base.is_none()) path = path_of(base);
  const py::gil_scoped_release released;
  return std::make_shared<OwnedHolder>(take(make_owned_target(posix_file_system(), path, threads)));
}

std::shared_ptr<CheckpointHolder> make_checkpoint(const py::object& path, unsigned threads) {
  const std::string name = path_of(path);
  const py::gil_scoped_release released;
  return std::make_shared<CheckpointHolder>(
      take(make_checkpoint_target(posix_file_system(), name, threads)));
}

// ([(tensor, units, region, digest), ...], [(tensor, why), ...])
using SharesOfPython =
    std::pair<std::vector<std::tuple<std::string, std::uint64_t, std::string, std::string>>,
              std::vector<std::pair<std::string, std::string>>>;

SharesOfPython as_python(const HeldTarget& held, const Shares& shares) {
  SharesOfPython found;
  const auto name = [&](std::uint32_t tensor) { return (*held.layout())[tensor].name; };
  for (const TensorShare& each : shares.tensors) {
    found.first.emplace_back(name(each.tensor), each.units, to_hex(each.region),
                             to_hex(each.digest));
  }
  for (const UnprovenTensor& each : shares.unproven) {
    found.second.emplace_back(name(each.tensor), each.why);
  }
  return found;
}

void bind_state(py::module_& module) {
  py::class_<TargetState> state(module, "TargetState");
  def_fields(state, "digest", &TargetState::digest, "valid", &TargetState::valid, "partial",
             &TargetState::partial);
  state
      .def_property_readonly("run",
                             [](const TargetState& self) -> std::optional<std::string> {
                               if (self.id.run.is_zero()) return std::nullopt;
                               return to_hex(self.id.run);
                             })
      .def_property_readonly("version", [](const TargetState& self) { return self.id.version; })
      .def("__repr__", [](const TargetState& self) {
        return concat("TargetState(version=", self.id.version, ", digest='", to_hex(self.digest),
                      "', valid=", self.valid ? "True" : "False", ")");
      });
}

}  // namespace

void HeldTarget::refresh(bool replaced) {
  const TargetState state = target_->state();
  const WeightLayout* const layout = target_->layout();
  const bool other = layout != nullptr && (!layout_ || layout_->signature() != layout->signature());
  const bool moved = replaced || state != state_ || other;
  state_ = state;
  if (other) layout_ = *layout;
  const auto* const mapped = dynamic_cast<const MappedTarget*>(target_.get());
  if (moved && mapped != nullptr) tracked_ = mapped->tracked();
}

template <typename Read>
auto HeldTarget::read_now(const Read& read) {
  auto* const mapped = dynamic_cast<MappedTarget*>(target_.get());
  if (mapped == nullptr) {
    fail(StatusCode::kUnsupported,
         "a checkpoint directory cannot be swept: use the command driftless verify");
  }
  const InUse::Turn turn =
      user_ != nullptr ? user_->take("the receiver") : in_use_.take("the target");
  auto found = without_gil([&]() -> decltype(read(*mapped)) {
    DRIFTLESS_RETURN_IF_ERROR(wait_for_stream());
    return read(*mapped);
  });
  refresh();
  return take(std::move(found));
}

std::uint32_t HeldTarget::number_of(const std::string& tensor) const {
  const auto found = layout_ ? layout_->find(tensor) : std::nullopt;
  if (!found) fail(StatusCode::kInvalidArgument, concat("there is no tensor ", shown(tensor)));
  return static_cast<std::uint32_t>(*found);
}

Shares HeldTarget::sweep() {
  return read_now([](MappedTarget& target) { return target.sweep(); });
}
LookedShares HeldTarget::look() {
  return read_now([](MappedTarget& target) { return target.look(); });
}
BlockSums HeldTarget::blocks(const std::string& tensor, std::uint64_t block_units) {
  const std::uint32_t number = number_of(tensor);
  return read_now([&](MappedTarget& target) { return target.blocks(number, block_units); });
}
std::vector<HeldCopy> HeldTarget::copies(const std::string& tensor, std::uint64_t first,
                                         std::uint64_t count) {
  const std::uint32_t number = number_of(tensor);
  return read_now([&](MappedTarget& target) { return target.copies(number, first, count); });
}

void bind_targets(py::module_& module) {
  bind_state(module);
  const auto threads = py::arg("threads") = 0;
  py::class_<HeldTarget, std::shared_ptr<HeldTarget>>(
      module, "Target", "Where a receiver keeps weights. One receiver at a time.")
      .def_property_readonly("state", &HeldTarget::state)
      .def_property_readonly("layout",
                             [](const HeldTarget& held) {
                               return held.layout() == nullptr ? std::nullopt
                                                               : std::optional(*held.layout());
                             })
      .def(
          "sweep", [](HeldTarget& held) { return as_python(held, held.sweep()); },
          "Reads all weights and computes their digests. Returns ([(tensor, units, region, "
          "digest), "
          "...], [(tensor, why it cannot be read back), ...]). Raises MismatchError, and marks the "
          "state invalid, if they differ from tracked().")
      .def(
          "look",
          [](HeldTarget& held) {
            const LookedShares looked = held.look();
            std::vector<std::string> suspects;
            for (const std::uint32_t each : looked.suspects) {
              suspects.push_back((*held.layout())[each].name);
            }
            return std::pair(as_python(held, looked.shares), suspects);
          },
          "Reads all weights, whatever the state is. Returns (shares as from sweep(), the tensors "
          "that differ from tracked()).")
      .def(
          "blocks",
          [](HeldTarget& held, const std::string& tensor, std::uint64_t block_units) {
            const BlockSums found = held.blocks(tensor, block_units);
            std::vector<std::string> sums;
            for (const Digest& each : found.sums) sums.push_back(to_hex(each));
            return std::pair(sums, found.disagree);
          },
          py::arg("tensor"), py::arg("block_units"),
          "Returns ([the digest of each block of the tensor], [blocks whose copies in two places "
          "differ]).")
      .def(
          "copies",
          [](HeldTarget& held, const std::string& tensor, std::uint64_t first,
             std::uint64_t count) {
            py::list copies;
            for (const HeldCopy& each : held.copies(tensor, first, count)) {
              py::list runs;
              for (const HeldRun& run : each.runs)
                runs.append(py::make_tuple(run.first, run.count));
              const auto* const values = reinterpret_cast<const char*>(each.values.data());
              copies.append(py::make_tuple(each.parameter, runs,
                                           py::bytes(values, each.values.size()), each.foreign));
            }
            return copies;
          },
          py::arg("tensor"), py::arg("first"), py::arg("count"),
          "Reads units [first, first + count) of a tensor. Returns, for each parameter that holds "
          "some of them, (parameter, [(first unit, units), ...], their values, units with foreign "
          "bits).")
      .def(
          "tracked", [](const HeldTarget& held) { return as_python(held, held.tracked()); },
          "The shares as of the last call, in the form of sweep(), without reading the weights.");
  py::class_<MemoryHolder, HeldTarget, std::shared_ptr<MemoryHolder>>(
      module, "MemoryTarget",
      "Tensors of the caller, written in place: all in host memory, or all on one GPU. `version`: "
      "the version that they hold; None: none yet; 0: the base. `dtypes` names types that the "
      "arrays' library does not have, such as {\"w\": \"BF16\"} for a uint16 array. `stream` (as "
      "in "
      "driftless.kernels): before the target reads weights on a GPU, and after `pause` before it "
      "writes them, it waits for this stream.")
      .def(py::init(&make_memory), py::arg("tensors"), py::arg("run") = py::none(),
           py::arg("version") = py::none(),
           py::arg("dtypes") = std::map<std::string, std::string>(), threads,
           py::arg("stream") = py::none());
  py::class_<OwnedHolder, HeldTarget, std::shared_ptr<OwnedHolder>>(
      module, "OwnedTarget",
      "Tensors in memory that the target allocates: a copy of `base`, or empty until a receiver "
      "opens.")
      .def(py::init(&make_owned), py::arg("base") = py::none(), threads)
      .def("ref", &OwnedHolder::tensor, py::arg("name"))
      .def(
          "tensor",
          [](const OwnedHolder& held, const std::string& name) {
            return py::cast(held.tensor(name)).attr("numpy")();
          },
          py::arg("name"), "A read-only numpy view.");
  py::class_<CheckpointHolder, HeldTarget, std::shared_ptr<CheckpointHolder>>(
      module, "CheckpointTarget", "A local checkpoint directory, patched in place.")
      .def(py::init(&make_checkpoint), py::arg("path"), threads);
}

}  // namespace driftless::python
