// SPDX-License-Identifier: Apache-2.0
#include "module/layout.h"

#include <pybind11/operators.h>
#include <pybind11/stl.h>

#include "module/errors.h"

namespace driftless::python {
namespace {

std::string text_of(const TensorSpec& spec) {
  return concat("TensorSpec('", spec.name, "', '", info(spec.dtype).name, "', ",
                spec.shape_string(), ")");
}

void bind_spec(py::module_& module) {
  py::class_<TensorSpec>(module, "TensorSpec")
      .def(py::init(
               [](std::string name, const std::string& dtype, std::vector<std::uint64_t> shape) {
                 const DType type = take(parse_dtype(dtype));
                 return take(TensorSpec::make(std::move(name), type, std::move(shape)));
               }),
           py::arg("name"), py::arg("dtype"), py::arg("shape"))
      .def_readonly("name", &TensorSpec::name)
      .def_property_readonly("dtype",
                             [](const TensorSpec& spec) { return py::str(info(spec.dtype).name); })
      .def_property_readonly("shape",
                             [](const TensorSpec& spec) { return py::tuple(py::cast(spec.shape)); })
      .def_readonly("size_bytes", &TensorSpec::size_bytes)
      .def_property_readonly("units", &TensorSpec::units)
      .def("__eq__",
           [](const TensorSpec& a, const py::object& b) {
             return py::isinstance<TensorSpec>(b) && a == b.cast<const TensorSpec&>();
           })
      .def("__hash__", [](const TensorSpec& spec) { return py::hash(py::str(text_of(spec))); })
      .def("__repr__", &text_of);
}

}  // namespace

void bind_layout(py::module_& module) {
  bind_spec(module);
  py::class_<WeightLayout>(module, "Layout")
      .def(py::init([](std::vector<TensorSpec> tensors) {
             return take(WeightLayout::make(std::move(tensors)));
           }),
           py::arg("tensors"))
      .def_property_readonly("tensors",
                             [](const WeightLayout& layout) {
                               return std::vector<TensorSpec>(layout.tensors().begin(),
                                                              layout.tensors().end());
                             })
      .def_property_readonly("signature",
                             [](const WeightLayout& layout) { return to_hex(layout.signature()); })
      .def_property_readonly("total_bytes", &WeightLayout::total_bytes)
      .def_property_readonly("total_units", &WeightLayout::total_units)
      .def("find", &WeightLayout::find, py::arg("name"))
      .def(
          "check_same",
          [](const WeightLayout& layout, const WeightLayout& other, const std::string& ours,
             const std::string& theirs) { check(layout.check_same(other, ours, theirs)); },
          py::arg("other"), py::arg("ours") = "this layout", py::arg("theirs") = "the other")
      .def("__len__", &WeightLayout::size)
      .def("__getitem__",
           [](const WeightLayout& layout, std::size_t index) {
             if (index >= layout.size()) throw py::index_error();
             return layout[index];
           })
      .def("__eq__", [](const WeightLayout& a, const py::object& b) {
        return py::isinstance<WeightLayout>(b) &&
               a.signature() == b.cast<const WeightLayout&>().signature();
      });
}

}  // namespace driftless::python
