// SPDX-License-Identifier: Apache-2.0
// Functions that add the parts of the module, and helpers that the parts share.
#pragma once

#include <pybind11/pybind11.h>

#include <functional>
#include <string>

#include "core/digest.h"
#include "core/dtype.h"
#include "core/hash128.h"
#include "formats/encoding.h"
#include "module/errors.h"

namespace driftless::python {

void bind_tensor_ref(py::module_& module);
void bind_layout(py::module_& module);
void bind_job(py::module_& module);
void bind_source(py::module_& module);
void bind_publisher(py::module_& module);
void bind_targets(py::module_& module);
void bind_engines(py::module_& module);
void bind_receiver(py::module_& module);
void bind_worker(py::module_& module);
void bind_agent(py::module_& module);
void bind_kernels(py::module_& module);
void bind_engine_driver(py::module_& module);

// Converts a value for Python: hashes become hexadecimal text, types and encodings their names.
template <typename T>
T as_python(T value) {
  return value;
}
inline std::string as_python(const Digest& digest) { return to_hex(digest); }
inline std::string as_python(const Hash128& hash) { return to_hex(hash); }
inline std::string as_python(DType dtype) { return std::string(info(dtype).name); }
inline std::string as_python(Encoding encoding) { return std::string(info(encoding).name); }

// Read-only properties: name, member, name, member and so on.
template <typename Class, typename Member, typename... Rest>
Class& def_fields(Class& python_class, const char* name, Member member, Rest... rest) {
  python_class.def_property_readonly(
      name, [member](typename Class::type& self) { return as_python(std::invoke(member, self)); });
  if constexpr (sizeof...(rest) > 0) def_fields(python_class, rest...);
  return python_class;
}

// A path that Python passes as text or as an os.PathLike.
inline std::string path_of(const py::object& path) {
  return py::module_::import("os").attr("fspath")(path).cast<std::string>();
}

}  // namespace driftless::python
