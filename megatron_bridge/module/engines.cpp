// SPDX-License-Identifier: Apache-2.0
// Classes for driftless.engines: strided maps, the target of a module's parameters, the new values
// of tensors that Python writes, and masked overwrites on the host and on a GPU.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "core/parallel.h"
#include "module/bindings.h"
#include "module/device_kernels.h"
#include "module/target.h"
#include "plugin/job/devices.h"
#include "plugin/targets/mapped_target.h"
#include "plugin/targets/masked_device.h"
#include "plugin/targets/masked_write.h"
#include "plugin/targets/tensor_changes.h"
#include "plugin/targets/weight_sums.h"

namespace driftless::python {
namespace {

// Fails if `layout` does not have the tensor. `where` begins the error message.
std::uint32_t index_of(const WeightLayout& layout, const std::string& name,
                       std::string_view where = "the layout has") {
  const std::optional<std::uint32_t> found = layout.find(name);
  if (found) return *found;
  fail(StatusCode::kNotFound, where, " no tensor '", name, "'");
}

// A map into units of type `dtype` at an address. Values of type `from` are converted. `what`
// begins the error message.
WeightMap map_into(const StridedMap& map, std::uint64_t address, DType from,
                   const std::string& dtype, const std::string& what = {}) {
  const DType to = take(parse_dtype(dtype));
  const std::optional<ValueCast> cast = value_cast(from, to);
  if (!cast) {
    fail(StatusCode::kUnsupported, what, "there is no conversion from ", info(from).name, " to ",
         dtype, " here");
  }
  return {0, memory_at(address), unit_bytes(to), map, *cast, {}};
}

// TensorChanges for Python: by tensor names, and written into Python's tensors.
class HeldChanges {
 public:
  explicit HeldChanges(std::shared_ptr<const TensorChanges> changes)
      : changes_(std::move(changes)) {}

  [[nodiscard]] std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const std::uint32_t tensor : changes_->tensors())
      names.push_back(changes_->layout()[tensor].name);
    return names;
  }
  [[nodiscard]] bool whole() const { return changes_->whole(); }
  [[nodiscard]] std::uint64_t changed(const std::string& name) const {
    return changes_->changed_units(index(name));
  }
  [[nodiscard]] std::optional<std::uint64_t> absent(const std::string& name) const {
    const std::uint32_t tensor = index(name);
    return without_gil([&] { return changes_->absent_bits(tensor); });
  }
  void write(const std::string& name, const py::object& into,
             std::optional<std::uint64_t> only) const {
    const std::uint32_t tensor = index(name);
    const TensorRef ref = tensor_ref(into, name);
    check(check_on_host(ref, name));
    check(check_writable(ref, name));
    if (ref.size_bytes != spec(name).size_bytes) {
      fail(StatusCode::kInvalidArgument, "tensor '", name, "' has ", ref.size_bytes,
           " bytes, expected ", spec(name).size_bytes);
    }
    without_gil([&] { changes_->write(tensor, ref.data, only); });
  }
  // Writes the tensor's changes that lie in the map to memory.
  [[nodiscard]] MaskedWrite overwrite(const std::string& name, const StridedMap& map,
                                      std::uint64_t target, const std::string& dtype,
                                      unsigned threads) const {
    const WeightMap into = map_into(map, target, spec(name).dtype, dtype);
    const std::span<const DeltaPiece> changed = pieces(name);
    return take(
        without_gil([&] { return MaskedWrite::make(into, changed, threads_or_default(threads)); }));
  }

  [[nodiscard]] const TensorSpec& spec(const std::string& name) const {
    return changes_->layout()[index(name)];
  }
  [[nodiscard]] std::span<const DeltaPiece> pieces(const std::string& name) const {
    return changes_->pieces(index(name));
  }

 private:
  [[nodiscard]] std::uint32_t index(const std::string& name) const {
    return index_of(changes_->layout(), name, "there is");
  }
  std::shared_ptr<const TensorChanges> changes_;
};

using View = std::tuple<std::uint64_t, std::vector<std::uint64_t>, std::vector<std::uint64_t>>;

StridedView view_of(const View& view) {
  return {std::get<0>(view), std::get<1>(view), std::get<2>(view)};
}

// Calls a Python object with the methods check, stage, commit, undo, drop and, optionally, written,
// which is called after all writes. Its exceptions become statuses; a driftless.Error keeps its
// code.
class PythonWriter final : public ExternalWriter {
 public:
  explicit PythonWriter(py::object writer)
      : writer_(std::move(writer)), has_written_(py::hasattr(writer_, "written")) {}
  ~PythonWriter() override {  // NOLINT(bugprone-exception-escape): only without an interpreter
    const py::gil_scoped_acquire acquired;
    writer_ = py::object();
  }
  PythonWriter(const PythonWriter&) = delete;
  PythonWriter& operator=(const PythonWriter&) = delete;

  Status check(bool paused) override { return call("check", paused); }
  Status stage(std::shared_ptr<const TensorChanges> changes) override {
    return call("stage", std::make_shared<HeldChanges>(std::move(changes)));
  }
  Status commit() override { return call("commit"); }
  Status undo() override { return call("undo"); }
  void drop() override { static_cast<void>(call("drop")); }
  Status written() override { return has_written_ ? call("written") : Status(); }

 private:
  template <typename... Arguments>
  Status call(const char* method, Arguments&&... arguments) const {
    const py::gil_scoped_acquire acquired;
    try {
      writer_.attr(method)(std::forward<Arguments>(arguments)...);
      return {};
    } catch (...) {
      return caught_status();
    }
  }

  py::object writer_;
  bool has_written_;  // whether it has the method written()
};

// The parts of a target, and the Python objects that must live as long as it.
struct TargetParts {
  MappedParts parts;
  MappedOptions options;
  py::object owners;  // of the memory that the maps lead to
  std::optional<int> gpu;
};

class MappedHolder : public HeldTarget {
 public:
  explicit MappedHolder(TargetParts given)
      : MappedHolder(take(without_gil([&] {
                       return make_mapped_target(std::move(given.parts), given.options);
                     })),
                     std::move(given.owners), given.gpu) {}
  [[nodiscard]] bool proven() const { return target_->proven(); }
  [[nodiscard]] std::optional<int> gpu() const override { return gpu_; }
  void replace(TargetParts given) {
    check(without_gil([&] { return target_->replace(std::move(given.parts), given.options); }));
    owners_ = std::move(given.owners);
    gpu_ = given.gpu;
    refresh(true);
  }

 private:
  MappedHolder(std::shared_ptr<MappedTarget> target, py::object owners, std::optional<int> gpu)
      : HeldTarget(target), target_(std::move(target)), owners_(std::move(owners)), gpu_(gpu) {}

  std::shared_ptr<MappedTarget> target_;
  py::object owners_;
  std::optional<int> gpu_;
};

// (tensor, address of unit 0, dtype there, map, the parameter's name)
using MapTuple = std::tuple<std::string, std::uint64_t, std::string, StridedMap, std::string>;

WeightMap map_of(const WeightLayout& layout, const MapTuple& given) {
  const auto& [name, address, dtype, map, parameter] = given;
  const std::uint32_t tensor = index_of(layout, name);
  WeightMap made = map_into(map, address, layout[tensor].dtype, dtype,
                            concat("tensor '", name, "' into parameter '", parameter, "': "));
  made.tensor = tensor;
  made.parameter = parameter;
  return made;
}

TargetParts make_parts(const WeightLayout& layout, const std::vector<MapTuple>& maps,
                       const std::vector<std::string>& external,
                       const std::map<std::string, std::string>& refused, const py::object& writer,
                       const py::object& owners, const std::optional<std::string>& run,
                       std::optional<std::uint64_t> version,
                       const std::optional<std::string>& digest,
                       const std::vector<std::string>& digests, unsigned threads,
                       std::optional<int> device, std::optional<std::uint32_t> rank,
                       const std::string& only_rule) {
  TargetParts made;
  made.owners = owners;
  MappedParts& parts = made.parts;
  parts.layout = layout;
  parts.only_rule = only_rule;
  for (const MapTuple& map : maps) parts.maps.push_back(map_of(layout, map));
  for (const std::string& name : external) parts.external.push_back(index_of(layout, name));
  for (const auto& [name, why] : refused) parts.refused.emplace_back(index_of(layout, name), why);
  if (!writer.is_none()) parts.writer = std::make_shared<PythonWriter>(writer);
  made.gpu = device;
  if (device) parts.memory = take(make_device_memory(*device));
  MappedOptions& options = made.options;
  if (version) {
    options.initial.emplace();
    options.initial->version = *version;
    if (run) options.initial->run = take(hash128_from_hex(*run));
  }
  if (digest) options.initial_digest = take(digest_from_hex(*digest));
  for (const std::string& each : digests) {
    options.initial_tensors.push_back(take(digest_from_hex(each)));
  }
  options.threads = threads;
  options.rank = rank;
  return made;
}

// MappedTarget(...) and replace(...) take what make_parts() does.
template <typename Class, typename... Arguments>
void def_making(Class& holder, TargetParts (*make)(Arguments...)) {
  const auto named = std::make_tuple(
      py::arg("layout"), py::arg("maps"), py::arg("external") = std::vector<std::string>(),
      py::arg("refused") = std::map<std::string, std::string>(), py::arg("writer") = py::none(),
      py::arg("owners") = py::none(), py::arg("run") = py::none(), py::arg("version") = py::none(),
      py::arg("digest") = py::none(), py::arg("digests") = std::vector<std::string>(),
      py::arg("threads") = 0, py::arg("device") = py::none(), py::arg("rank") = py::none(),
      py::arg("only_rule") = std::string());
  const auto init = [make](Arguments... arguments) {
    return std::make_shared<MappedHolder>(make(std::forward<Arguments>(arguments)...));
  };
  const auto replace = [make](MappedHolder& self, Arguments... arguments) {
    self.replace(make(std::forward<Arguments>(arguments)...));
  };
  std::apply(
      [&](const auto&... each) {
        holder.def(py::init(init), each...);
        holder.def("replace", replace, each...,
                   "Replaces the maps after the engine has moved its tensors. A receiver may have "
                   "the target open, but neither it nor the engine may use the weights meanwhile.");
      },
      named);
}

// Copies the units of `source` that are not the sentinel to `target`, through a map.
MaskedWrite masked_write(const StridedMap& map, std::uint64_t source, const std::string& dtype,
                         std::uint64_t sentinel, std::uint64_t target,
                         const std::string& target_dtype, unsigned threads) {
  const WeightMap into = map_into(map, target, take(parse_dtype(dtype)), target_dtype);
  const MaskedSource from{memory_at(source), sentinel};
  return take(
      without_gil([&] { return MaskedWrite::make(into, from, threads_or_default(threads)); }));
}

// (the tensor's address on the host, its units, its dtype, address of the memory's first unit, its
// dtype, map)
using SourcedTuple =
    std::tuple<std::uint64_t, std::uint64_t, std::string, std::uint64_t, std::string, StridedMap>;

std::vector<bool> hold(const std::vector<SourcedTuple>& given, std::optional<int> device,
                       unsigned threads) {
  std::vector<SourcedMap> maps;
  for (const auto& [source, units, source_dtype, address, dtype, map] : given) {
    const DType from = take(parse_dtype(source_dtype));
    maps.push_back(
        {map_into(map, address, from, dtype), {memory_at(source), units * unit_bytes(from)}});
  }
  const py::gil_scoped_release released;
  const std::shared_ptr<WeightMemory> memory =
      device ? take(make_device_memory(*device)) : make_host_memory();
  return take(hold_sources(maps, *memory, threads_or_default(threads)));
}

void bind_map(py::module_& module) {
  py::class_<StridedMap> map(
      module, "StridedMap",
      "Maps units of a tensor to units of other memory. Views are (offset, shape, strides).");
  def_fields(map, "units", &StridedMap::units, "dims", &StridedMap::dims);
  map.def(py::init([](const View& source, std::uint64_t source_units, const View& target,
                      std::uint64_t target_units) {
            return take(
                StridedMap::make(view_of(source), source_units, view_of(target), target_units));
          }),
          py::arg("source"), py::arg("source_units"), py::arg("target"), py::arg("target_units"))
      .def(
          "meets",
          [](const StridedMap& self, const StridedMap& other) {
            return meet(self, other, MapSide::kTarget);
          },
          "Whether the two maps write a common unit.");
  module.def("hold_sources", &hold, py::arg("maps"), py::arg("device") = py::none(),
             py::arg("threads") = 0,
             "Each of `maps` is (address of a tensor on the host, its units, its dtype, address of "
             "the first unit of other memory, the dtype there, map). Returns for each whether that "
             "memory, on the host or on GPU `device`, holds the tensor's converted values bit for "
             "bit. Reads all of both.");
  module.def("can_cast", [](const std::string& from, const std::string& to) {
    return value_cast(take(parse_dtype(from)), take(parse_dtype(to))).has_value();
  });
}

// MaskedDevice for Python: keeps its arguments alive, and numbers tensors in the order of stage().
class HeldMasked {
 public:
  using Dense = std::tuple<std::size_t, std::uint64_t, std::uint64_t>;

  explicit HeldMasked(int device) : device_(device), masked_(take(make_masked_device(device))) {}

  void stage(std::shared_ptr<HeldChanges> changes, const std::vector<std::string>& names,
             std::uint64_t dense_bytes, const std::vector<Dense>& first) {
    std::vector<MaskedDevice::Tensor> tensors;
    specs_.clear();
    for (const std::string& name : names) {
      const TensorSpec& spec = changes->spec(name);
      specs_.push_back(spec);
      tensors.push_back({spec.units(), unit_bytes(spec.dtype), changes->pieces(name)});
    }
    changes_ = std::move(changes);
    const std::vector<MaskedDevice::Dense> filled = checked(first);
    check(without_gil([&] { return masked_->stage(tensors, dense_bytes, filled); }));
  }
  // The full-shape tensor at this offset, with the content that the last fill() wrote there.
  [[nodiscard]] TensorRef tensor(std::size_t number, std::uint64_t offset) const {
    const TensorSpec& spec = at(number);
    const std::shared_ptr<std::byte> memory = masked_->dense();
    TensorRef ref = TensorRef::of(spec, memory.get() + offset, memory);
    ref.set_cuda(device_);
    return ref;
  }
  void fill(const std::vector<Dense>& dense, std::uint64_t stream) {
    const std::vector<MaskedDevice::Dense> filled = checked(dense);
    check(without_gil([&] { return masked_->fill(filled, stream_of(stream)); }));
  }
  // Keeps the GIL, because it takes only a few microseconds.
  std::size_t overwrite(std::size_t number, const StridedMap& map, std::uint64_t target,
                        const std::string& dtype, std::uint64_t stream) {
    const WeightMap into = map_into(map, target, at(number).dtype, dtype);
    return take(masked_->overwrite(number, into, stream_of(stream)));
  }
  void undo(std::size_t write, std::uint64_t stream) {
    check(masked_->take_back(write, stream_of(stream)));
  }

 private:
  [[nodiscard]] const TensorSpec& at(std::size_t number) const {
    if (number < specs_.size()) return specs_[number];
    fail(StatusCode::kInvalidArgument, "there is no tensor number ", number, ": ", specs_.size(),
         " are staged");
  }
  [[nodiscard]] std::vector<MaskedDevice::Dense> checked(const std::vector<Dense>& given) const {
    std::vector<MaskedDevice::Dense> dense;
    for (const auto& [number, offset, sentinel] : given) {
      static_cast<void>(at(number));
      dense.push_back({number, offset, sentinel});
    }
    return dense;
  }

  int device_;
  std::unique_ptr<MaskedDevice> masked_;
  std::shared_ptr<HeldChanges> changes_;  // the staged tensors point into it
  std::vector<TensorSpec> specs_;
};

}  // namespace

void bind_engines(py::module_& module) {
  bind_map(module);
  py::class_<MappedHolder, HeldTarget, std::shared_ptr<MappedHolder>> mapped(
      module, "MappedTarget",
      "Parameters that hold tensors sliced, fused, transposed or converted. `maps` are (tensor, "
      "address of the memory's first unit, its dtype, map, the parameter's name); all lead to host "
      "memory, or to that of one GPU, `device`. `writer` writes the tensors that have no maps; its "
      "methods are check(), stage(changes), commit(), undo() and drop(), and each may raise. After "
      "a failed commit(), undo() restores the old values; if it fails, too, the target holds no "
      "version any more. The optional written() is called after every commit and every undone "
      "commit; if it raises, the commit is undone. With `only_rule`, versions that another rule "
      "quantized are refused. driftless.engines makes targets from modules.");
  def_making(mapped, &make_parts);
  mapped.def_property_readonly("proven", &MappedHolder::proven,
                               "Whether the digest is proven from the parameters' own bits.");
  py::class_<MaskedWrite>(
      module, "MaskedWrite",
      "Copies the units of `source` that are not the sentinel to `target`, through a map; both are "
      "addresses. The constructor makes the copy, undo() restores the old values.")
      .def(py::init(&masked_write), py::arg("map"), py::arg("source"), py::arg("dtype"),
           py::arg("sentinel"), py::arg("target"), py::arg("target_dtype"), py::arg("threads") = 0)
      .def("undo", &MaskedWrite::undo, py::call_guard<py::gil_scoped_release>());
  py::class_<HeldChanges, std::shared_ptr<HeldChanges>> changes(
      module, "TensorChanges", "New values of the tensors that Python writes.");
  def_fields(changes, "names", &HeldChanges::names, "whole", &HeldChanges::whole);
  changes.def("changed", &HeldChanges::changed, py::arg("name"))
      .def("absent", &HeldChanges::absent, py::arg("name"),
           "A bit pattern that no new value of the tensor has; None: all patterns occur.")
      .def(
          "write", &HeldChanges::write, py::arg("name"), py::arg("tensor"),
          py::arg("only") = py::none(),
          "Writes the new values into a tensor of the same size on the host; with `only`, just the "
          "values with these bits.")
      .def("overwrite", &HeldChanges::overwrite, py::arg("name"), py::arg("map"), py::arg("target"),
           py::arg("dtype"), py::arg("threads") = 0,
           "Writes the changes that lie in the map to memory at an address.");
  py::class_<HeldMasked>(
      module, "MaskedDevice",
      "Masked overwrites in the memory of a GPU. A tensor's number is its index in the names of "
      "stage(). `dense` tensors are (number, offset in bytes, sentinel). A method with `stream` (a "
      "torch stream's cuda_stream) queues its work there and returns.")
      .def(py::init<int>(), py::arg("device"))
      .def("stage", &HeldMasked::stage, py::arg("changes"), py::arg("names"),
           py::arg("dense_bytes"), py::arg("first"),
           "Copies the changes of these tensors to the GPU, makes the full-shape tensors `first`, "
           "and waits for both.")
      .def("tensor", &HeldMasked::tensor, py::arg("number"), py::arg("offset"),
           "The full-shape tensor at this offset, with the content of the last fill().")
      .def("fill", &HeldMasked::fill, py::arg("dense"), py::arg("stream"))
      .def("overwrite", &HeldMasked::overwrite, py::arg("number"), py::arg("map"),
           py::arg("target"), py::arg("dtype"), py::arg("stream"),
           "Writes the changes that lie in the map to memory at an address. Returns a number for "
           "undo().")
      .def("undo", &HeldMasked::undo, py::arg("write"), py::arg("stream"));
}

}  // namespace driftless::python
