// SPDX-License-Identifier: Apache-2.0
// What driftless.engines needs: strided maps, a target of a module's parameters, and the new values
// of the tensors that Python writes itself.
#include "plugin/targets/mapped_target.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/parallel.h"
#include "module/bindings.h"
#include "module/errors.h"
#include "module/held_changes.h"
#include "module/target.h"
#include "plugin/job/devices.h"

namespace driftless::python {
namespace {

using View = std::tuple<std::uint64_t, std::vector<std::uint64_t>, std::vector<std::uint64_t>>;

StridedView view_of(const View& view) {
  return {std::get<0>(view), std::get<1>(view), std::get<2>(view)};
}

// A Python object with check, stage, commit, undo and drop. What it raises becomes a status that
// says so; an exception of ours keeps its code.
class PythonWriter final : public ExternalWriter {
 public:
  PythonWriter(py::object writer, std::shared_ptr<const WeightLayout> layout)
      : writer_(std::move(writer)), layout_(std::move(layout)) {}
  ~PythonWriter() override {  // NOLINT(bugprone-exception-escape): only without an interpreter
    const py::gil_scoped_acquire acquired;
    writer_ = py::object();
  }
  PythonWriter(const PythonWriter&) = delete;
  PythonWriter& operator=(const PythonWriter&) = delete;

  Status check() override {
    return call([&] { writer_.attr("check")(); });
  }
  Status stage(std::shared_ptr<const TensorChanges> changes) override {
    return call([&] {
      writer_.attr("stage")(py::cast(std::make_shared<HeldChanges>(std::move(changes), layout_)));
    });
  }
  Status commit() override {
    return call([&] { writer_.attr("commit")(); });
  }
  Status undo() override {
    return call([&] { writer_.attr("undo")(); });
  }
  void drop() override {
    static_cast<void>(call([&] { writer_.attr("drop")(); }));
  }

 private:
  template <typename Work>
  Status call(const Work& work) const {
    const py::gil_scoped_acquire acquired;
    try {
      work();
      return {};
    } catch (py::error_already_set& raised) {
      return status_of(raised);
    } catch (const StatusError& raised) {
      return raised.status;
    } catch (const std::exception& raised) {
      return error(StatusCode::kInternal, raised.what());
    }
  }
  static Status status_of(py::error_already_set& raised) {
    const std::string type = py::str(raised.type().attr("__name__"));
    const std::string text = py::str(raised.value());
    StatusCode code = StatusCode::kInternal;
    if (py::hasattr(raised.value(), "code")) {
      const py::object named = raised.value().attr("code");
      if (py::isinstance<py::str>(named)) code = code_of(named.cast<std::string>());
    }
    return code == StatusCode::kInternal ? error(code, type, ": ", text) : error(code, text);
  }
  static StatusCode code_of(const std::string& name) {
    for (auto code = StatusCode::kInvalidArgument; code <= StatusCode::kInternal;
         code = static_cast<StatusCode>(static_cast<unsigned>(code) + 1)) {
      if (to_string(code) == name) return code;
    }
    return StatusCode::kInternal;
  }

  py::object writer_;
  std::shared_ptr<const WeightLayout> layout_;
};

class ModuleHolder : public HeldTarget {
 public:
  ModuleHolder(std::shared_ptr<MappedTarget> target, py::object owners)
      : HeldTarget(target), module_(std::move(target)), owners_(std::move(owners)) {}
  [[nodiscard]] bool proven() const { return module_->proven(); }

 private:
  std::shared_ptr<MappedTarget> module_;
  py::object owners_;  // of the memory that the maps lead to
};

// (tensor, address of unit 0, dtype there, map, the parameter's name)
using MapTuple = std::tuple<std::string, std::uint64_t, std::string, StridedMap, std::string>;

std::uint32_t index_of(const WeightLayout& layout, const std::string& name) {
  const std::optional<std::uint32_t> found = layout.find(name);
  if (found) return *found;
  throw StatusError(error(StatusCode::kNotFound, "the layout has no tensor '", name, "'"));
}

WeightMap map_of(const WeightLayout& layout, const MapTuple& given) {
  const auto& [name, address, dtype_name, map, parameter] = given;
  WeightMap made;
  made.tensor = index_of(layout, name);
  made.data = memory_at(address);
  const DType dtype = take(parse_dtype(dtype_name));
  made.unit_bytes = unit_bytes(dtype);
  const std::optional<ValueCast> cast = value_cast(layout[made.tensor].dtype, dtype);
  if (!cast) {
    throw StatusError(error(StatusCode::kUnsupported, "tensor '", name, "' is ",
                            info(layout[made.tensor].dtype).name, ", parameter '", parameter,
                            "' is ", dtype_name, ": there is no such conversion here"));
  }
  made.cast = *cast;
  made.map = map;
  made.parameter = parameter;
  return made;
}

std::shared_ptr<ModuleHolder> make_module(
    const WeightLayout& layout, const std::vector<MapTuple>& maps,
    const std::vector<std::string>& external, const std::map<std::string, std::string>& refused,
    const py::object& writer, const py::object& owners, const std::optional<std::string>& run,
    std::optional<std::uint64_t> version, const std::optional<std::string>& digest,
    unsigned threads, std::optional<int> device) {
  MappedParts parts;
  parts.layout = layout;
  for (const MapTuple& map : maps) parts.maps.push_back(map_of(layout, map));
  for (const std::string& name : external) parts.external.push_back(index_of(layout, name));
  for (const auto& [name, why] : refused) parts.refused.emplace_back(index_of(layout, name), why);
  if (!writer.is_none()) {
    parts.writer =
        std::make_shared<PythonWriter>(writer, std::make_shared<const WeightLayout>(layout));
  }
  if (device) parts.memory = take(open_device_memory(*device));
  MappedOptions options;
  if (version) {
    options.initial.emplace();
    options.initial->version = *version;
    if (run) options.initial->run = take(hash128_from_hex(*run));
  }
  if (digest) options.initial_digest = take(digest_from_hex(*digest));
  options.threads = threads;
  Result<std::unique_ptr<MappedTarget>> made = [&] {
    const py::gil_scoped_release released;
    return make_mapped_target(std::move(parts), options);
  }();
  return std::make_shared<ModuleHolder>(take(std::move(made)), owners);
}

void bind_map(py::module_& module) {
  py::class_<StridedMap>(module, "StridedMap")
      .def(py::init([](const View& source, std::uint64_t source_units, const View& target,
                       std::uint64_t target_units) {
             return take(
                 StridedMap::make(view_of(source), source_units, view_of(target), target_units));
           }),
           py::arg("source"), py::arg("source_units"), py::arg("target"), py::arg("target_units"))
      .def_property_readonly("units", &StridedMap::units)
      .def_readonly("dims", &StridedMap::dims)
      .def("target_of",
           [](const StridedMap& map, std::uint64_t position) -> std::optional<std::uint64_t> {
             const std::uint64_t at = map.target_of(position);
             if (at == StridedMap::kOutside) return std::nullopt;
             return at;
           })
      .def("meets", [](const StridedMap& a, const StridedMap& b) { return targets_meet(a, b); });
  module.def("can_cast", [](const std::string& from, const std::string& to) {
    return value_cast(take(parse_dtype(from)), take(parse_dtype(to))).has_value();
  });
}

}  // namespace

void bind_module_target(py::module_& module) {
  bind_map(module);
  py::class_<ModuleHolder, HeldTarget, std::shared_ptr<ModuleHolder>>(module, "MappedTarget")
      .def(py::init(&make_module), py::arg("layout"), py::arg("maps"),
           py::arg("external") = std::vector<std::string>(),
           py::arg("refused") = std::map<std::string, std::string>(),
           py::arg("writer") = py::none(), py::arg("owners") = py::none(),
           py::arg("run") = py::none(), py::arg("version") = py::none(),
           py::arg("digest") = py::none(), py::arg("threads") = 0, py::arg("device") = py::none())
      .def_property_readonly("proven", &ModuleHolder::proven);
}

}  // namespace driftless::python
