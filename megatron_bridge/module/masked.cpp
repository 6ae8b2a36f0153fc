// SPDX-License-Identifier: Apache-2.0
// Masked overwrites for driftless.engines, on the host and on a GPU.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <tuple>
#include <utility>

#include "core/parallel.h"
#include "module/bindings.h"
#include "module/device_kernels.h"
#include "module/errors.h"
#include "module/held_changes.h"
#include "module/tensor_ref.h"
#include "plugin/job/devices.h"
#include "plugin/targets/masked_device.h"

namespace driftless::python {

HeldChanges::HeldChanges(std::shared_ptr<const TensorChanges> changes,
                         std::shared_ptr<const WeightLayout> layout)
    : changes_(std::move(changes)), layout_(std::move(layout)) {}

std::vector<std::string> HeldChanges::names() const {
  std::vector<std::string> names;
  for (const std::uint32_t tensor : changes_->tensors()) names.push_back((*layout_)[tensor].name);
  return names;
}

std::uint64_t HeldChanges::changed(const std::string& name) const {
  return changes_->changed_units(index(name));
}

std::optional<std::uint64_t> HeldChanges::absent(const std::string& name) const {
  const std::uint32_t tensor = index(name);
  const py::gil_scoped_release released;
  return changes_->absent_bits(tensor);
}

void HeldChanges::write(const std::string& name, const py::object& into,
                        std::optional<std::uint64_t> only) const {
  const std::uint32_t tensor = index(name);
  const TensorRef ref = tensor_ref(into, name);
  check(check_on_host(ref, name));
  check(check_writable(ref, name));
  if (ref.size_bytes != (*layout_)[tensor].size_bytes) {
    throw StatusError(error(StatusCode::kInvalidArgument, "tensor '", name, "' has ",
                            ref.size_bytes, " bytes, expected ", (*layout_)[tensor].size_bytes));
  }
  const py::gil_scoped_release released;
  changes_->write(tensor, ref.data, only);
}

MaskedWrite HeldChanges::overwrite(const std::string& name, const StridedMap& map,
                                   std::uint64_t target, const std::string& dtype,
                                   unsigned threads) const {
  const std::uint32_t tensor = index(name);
  const WeightMap into = masked_target(map, target, (*layout_)[tensor].dtype, dtype);
  const py::gil_scoped_release released;
  return take(MaskedWrite::make(into, changes_->pieces(tensor),
                                threads == 0 ? default_threads() : threads));
}

std::uint32_t HeldChanges::index(const std::string& name) const {
  const std::optional<std::uint32_t> found = layout_->find(name);
  if (found) return *found;
  throw StatusError(error(StatusCode::kNotFound, "there is no tensor '", name, "'"));
}

WeightMap masked_target(const StridedMap& map, std::uint64_t address, DType from,
                        const std::string& dtype) {
  const DType to = take(parse_dtype(dtype));
  const std::optional<ValueCast> cast = value_cast(from, to);
  if (!cast) {
    throw StatusError(error(StatusCode::kUnsupported, "there is no conversion from ",
                            info(from).name, " to ", dtype, " here"));
  }
  return {0, memory_at(address), unit_bytes(to), map, *cast, {}};
}

namespace {

// A copy from `source`, in which units are new values or the sentinel, into `address`.
MaskedWrite masked_write(const StridedMap& map, std::uint64_t source, const std::string& dtype,
                         std::uint64_t sentinel, std::uint64_t target,
                         const std::string& target_dtype, unsigned threads) {
  const WeightMap into = masked_target(map, target, take(parse_dtype(dtype)), target_dtype);
  const MaskedSource from{memory_at(source), sentinel};
  const py::gil_scoped_release released;
  return take(MaskedWrite::make(into, from, threads == 0 ? default_threads() : threads));
}

// MaskedDevice for Python: keeps what it was given, and numbers tensors as they were staged.
class HeldMasked {
 public:
  using Dense = std::tuple<std::size_t, std::uint64_t, std::uint64_t>;

  explicit HeldMasked(int device) : device_(device), masked_(take(open_masked_device(device))) {}

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
    const py::gil_scoped_release released;
    check(masked_->stage(tensors, dense_bytes, filled));
  }
  // The full-shape tensor at this offset; its content is what fill() put there last.
  [[nodiscard]] TensorRef tensor(std::size_t number, std::uint64_t offset) const {
    const TensorSpec& spec = at(number);
    TensorRef ref;
    std::shared_ptr<std::byte> memory = masked_->dense();
    ref.data = memory.get() + offset;
    ref.memory = std::move(memory);
    ref.dtype = spec.dtype;
    ref.shape.assign(spec.shape.begin(), spec.shape.end());
    ref.size_bytes = spec.size_bytes;
    ref.device = DeviceKind::kCuda;
    ref.device_number = device_;
    ref.device_name = concat("cuda:", device_);
    return ref;
  }
  void fill(const std::vector<Dense>& dense, std::uint64_t stream) {
    const std::vector<MaskedDevice::Dense> filled = checked(dense);
    const py::gil_scoped_release released;
    check(masked_->fill(filled, stream_of(stream)));
  }
  // Takes some microseconds: not worth letting go of the interpreter.
  std::size_t overwrite(std::size_t number, const StridedMap& map, std::uint64_t target,
                        const std::string& dtype, std::uint64_t stream) {
    const WeightMap into = masked_target(map, target, at(number).dtype, dtype);
    return take(masked_->overwrite(number, into, stream_of(stream)));
  }
  void undo(std::size_t write, std::uint64_t stream) {
    check(masked_->take_back(write, stream_of(stream)));
  }

 private:
  [[nodiscard]] const TensorSpec& at(std::size_t number) const {
    if (number < specs_.size()) return specs_[number];
    throw StatusError(error(StatusCode::kInvalidArgument, "tensor ", number, " of ", specs_.size(),
                            " that are staged"));
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
  std::shared_ptr<HeldChanges> changes_;  // what is staged points into it
  std::vector<TensorSpec> specs_;
};

}  // namespace

void bind_masked(py::module_& module) {
  py::class_<HeldChanges, std::shared_ptr<HeldChanges>>(module, "TensorChanges")
      .def_property_readonly("names", &HeldChanges::names)
      .def_property_readonly("whole", &HeldChanges::whole)
      .def("changed", &HeldChanges::changed, py::arg("name"))
      .def("absent", &HeldChanges::absent, py::arg("name"))
      .def("write", &HeldChanges::write, py::arg("name"), py::arg("tensor"),
           py::arg("only") = py::none())
      .def("overwrite", &HeldChanges::overwrite, py::arg("name"), py::arg("map"), py::arg("target"),
           py::arg("dtype"), py::arg("threads") = 0);
  py::class_<MaskedWrite>(module, "MaskedWrite")
      .def(py::init(&masked_write), py::arg("map"), py::arg("source"), py::arg("dtype"),
           py::arg("sentinel"), py::arg("target"), py::arg("target_dtype"), py::arg("threads") = 0)
      .def_property_readonly("units", &MaskedWrite::units)
      .def("undo", &MaskedWrite::undo, py::call_guard<py::gil_scoped_release>());
  py::class_<HeldMasked>(module, "MaskedDevice")
      .def(py::init<int>(), py::arg("device"))
      .def("stage", &HeldMasked::stage, py::arg("changes"), py::arg("names"),
           py::arg("dense_bytes"), py::arg("first"))
      .def("tensor", &HeldMasked::tensor, py::arg("number"), py::arg("offset"))
      .def("fill", &HeldMasked::fill, py::arg("dense"), py::arg("stream"))
      .def("overwrite", &HeldMasked::overwrite, py::arg("number"), py::arg("map"),
           py::arg("target"), py::arg("dtype"), py::arg("stream"))
      .def("undo", &HeldMasked::undo, py::arg("write"), py::arg("stream"));
}

}  // namespace driftless::python
