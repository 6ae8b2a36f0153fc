// SPDX-License-Identifier: Apache-2.0
// driftless.TensorSpec and driftless.Layout.
#include "core/layout.h"

#include <pybind11/stl.h>

#include "module/bindings.h"

namespace driftless::python {
namespace {

std::string text_of(const TensorSpec& spec) {
  return concat("TensorSpec('", spec.name, "', '", info(spec.dtype).name, "', ",
                spec.shape_string(), ")");
}

void bind_spec(py::module_& module) {
  py::class_<TensorSpec> spec(module, "TensorSpec", "Name, type and shape of a tensor.");
  def_fields(spec, "name", &TensorSpec::name, "dtype", &TensorSpec::dtype, "size_bytes",
             &TensorSpec::size_bytes, "units", &TensorSpec::units);
  spec.def(py::init(
               [](std::string name, const std::string& dtype, std::vector<std::uint64_t> shape) {
                 const DType type = take(parse_dtype(dtype));
                 return take(TensorSpec::make(std::move(name), type, std::move(shape)));
               }),
           py::arg("name"), py::arg("dtype"), py::arg("shape"))
      .def_property_readonly("shape",
                             [](const TensorSpec& self) { return py::tuple(py::cast(self.shape)); })
      .def("__eq__",
           [](const TensorSpec& a, const py::object& b) {
             return py::isinstance<TensorSpec>(b) && a == b.cast<const TensorSpec&>();
           })
      .def("__hash__", [](const TensorSpec& self) { return py::hash(py::str(text_of(self))); })
      .def("__repr__", &text_of);
}

}  // namespace

void bind_layout(py::module_& module) {
  bind_spec(module);
  // torch's names of the types, by safetensors' names. Types below 8 bits are left out, because
  // torch counts their elements differently.
  py::dict names;
  for (const DTypeInfo& type : all_dtypes()) {
    if (type.bits >= 8) names[py::str(std::string(type.name))] = std::string(type.torch_name);
  }
  module.attr("TORCH_NAMES") = names;
  py::class_<WeightLayout> layout(module, "Layout",
                                  "The tensors of a run in ascending order of their names.");
  def_fields(layout, "signature", &WeightLayout::signature, "total_bytes",
             &WeightLayout::total_bytes, "total_units", &WeightLayout::total_units);
  layout
      .def(py::init([](std::vector<TensorSpec> tensors) {
             return take(WeightLayout::make(std::move(tensors)));
           }),
           py::arg("tensors"))
      .def_property_readonly("tensors",
                             [](const WeightLayout& self) {
                               return std::vector<TensorSpec>(self.tensors().begin(),
                                                              self.tensors().end());
                             })
      .def("find", &WeightLayout::find, py::arg("name"))
      .def(
          "check_same",
          [](const WeightLayout& self, const WeightLayout& other, const std::string& ours,
             const std::string& theirs) { check(self.check_same(other, ours, theirs)); },
          py::arg("other"), py::arg("ours") = "this layout", py::arg("theirs") = "the other",
          "Raises WrongLayoutError, naming the first tensor that differs.")
      .def("__len__", &WeightLayout::size)
      .def("__getitem__",
           [](const WeightLayout& self, std::size_t index) {
             if (index >= self.size()) throw py::index_error();
             return self[index];
           })
      .def("__eq__", [](const WeightLayout& a, const py::object& b) {
        return py::isinstance<WeightLayout>(b) &&
               a.signature() == b.cast<const WeightLayout&>().signature();
      });
}

}  // namespace driftless::python
