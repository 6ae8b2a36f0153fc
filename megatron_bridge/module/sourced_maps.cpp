// SPDX-License-Identifier: Apache-2.0
// driftless._native.hold_sources(): whether a module holds its checkpoint where maps say.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <tuple>

#include "core/parallel.h"
#include "module/bindings.h"
#include "module/device_kernels.h"
#include "module/tensor_ref.h"
#include "plugin/job/devices.h"
#include "plugin/targets/weight_sums.h"

namespace driftless::python {
namespace {

// (the tensor's address on the host, its units, its dtype, address of the memory's first unit, its
// dtype, map)
using SourcedTuple =
    std::tuple<std::uint64_t, std::uint64_t, std::string, std::uint64_t, std::string, StridedMap>;

SourcedMap sourced_map(const SourcedTuple& given) {
  const auto& [source, units, source_dtype, address, dtype_name, map] = given;
  const DType from = take(parse_dtype(source_dtype)), to = take(parse_dtype(dtype_name));
  const std::optional<ValueCast> cast = value_cast(from, to);
  if (!cast) {
    fail(StatusCode::kUnsupported, "there is no conversion from ", source_dtype, " to ", dtype_name,
         " here");
  }
  SourcedMap made;
  made.map.data = memory_at(address);
  made.map.unit_bytes = unit_bytes(to);
  made.map.map = map;
  made.map.cast = *cast;
  made.tensor = {memory_at(source), units * unit_bytes(from)};
  return made;
}

std::vector<bool> hold(const std::vector<SourcedTuple>& given, std::optional<int> device,
                       unsigned threads) {
  std::vector<SourcedMap> maps;
  for (const SourcedTuple& each : given) maps.push_back(sourced_map(each));
  const py::gil_scoped_release released;
  const std::shared_ptr<WeightMemory> memory =
      device ? take(make_device_memory(*device)) : make_host_memory();
  return take(hold_sources(maps, *memory, threads_or_default(threads)));
}

}  // namespace

void bind_sourced_maps(py::module_& module) {
  module.def("hold_sources", &hold, py::arg("maps"), py::arg("device") = py::none(),
             py::arg("threads") = 0,
             "For each of `maps`, (address of a tensor on the host, its units, its dtype, address "
             "of the memory's first unit, its dtype, map): whether that memory, the host's or a "
             "GPU's, holds the tensor's values, converted, to the bit. Reads all of both.");
}

}  // namespace driftless::python
