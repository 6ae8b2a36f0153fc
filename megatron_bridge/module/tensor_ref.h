// SPDX-License-Identifier: Apache-2.0
// TensorRef: a contiguous tensor in another object's memory, which it keeps alive. Tensors enter
// the library from Python, and leave it, as TensorRefs.
//
// In: torch tensors (by data_ptr(); gradients do not matter), numpy arrays (ml_dtypes' types
// included), __cuda_array_interface__, __dlpack__ of both kinds, the buffer protocol, TensorRef
// itself. Out: the buffer protocol and __dlpack__.
#pragma once

#include <pybind11/pybind11.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/layout.h"
#include "core/status.h"

namespace driftless::python {

namespace py = pybind11;

enum class DeviceKind : unsigned char { kCpu, kCuda, kOther };

struct TensorRef {
  std::byte* data = nullptr;
  DType dtype = DType::kU8;
  std::vector<std::uint64_t> shape;
  std::uint64_t size_bytes = 0;
  DeviceKind device = DeviceKind::kCpu;
  std::string device_name = "cpu";  // for messages: "cuda:0"
  int device_number = 0;
  bool read_only = false;
  // Unsigned integers of numpy, which may stand for a type that numpy does not have.
  bool plain_bits = false;
  py::object owner;                    // keeps Python's memory alive; used only with the GIL
  std::shared_ptr<const void> memory;  // keeps the library's memory alive

  [[nodiscard]] bool on_host() const { return device == DeviceKind::kCpu; }
  void set_cuda(int number);

  // A tensor of this type and shape in the library's host memory.
  [[nodiscard]] static TensorRef of(const TensorSpec& spec, std::byte* data,
                                    std::shared_ptr<const void> memory);
  // The same, read-only.
  [[nodiscard]] static TensorRef read_only_of(const TensorSpec& spec, const std::byte* data,
                                              std::shared_ptr<const void> memory);
};

// Memory at an address that Python passed.
[[nodiscard]] inline std::byte* memory_at(std::uint64_t address) {
  const auto number = static_cast<std::uintptr_t>(address);
  return reinterpret_cast<std::byte*>(number);  // NOLINT(performance-no-int-to-ptr)
}

// The tensor of a Python object, by the first protocol that the object supports. Raises if it is
// not contiguous, has a type that safetensors does not have, or is not in native byte order; `name`
// is for the message.
[[nodiscard]] TensorRef tensor_ref(const py::object& object, std::string_view name);

// Checks type and shape; the tensor may be on the host or on a GPU. Unsigned integers of numpy pass
// for any type of the same width.
[[nodiscard]] Status check_tensor(const TensorRef& ref, const TensorSpec& spec);
[[nodiscard]] Status check_on_host(const TensorRef& ref, std::string_view name);
[[nodiscard]] Status check_writable(const TensorRef& ref, std::string_view name);
[[nodiscard]] std::uint64_t units_of(const TensorRef& ref);
// The type of single units: the tensor's own, or bytes for types of less than 8 bits.
[[nodiscard]] DType unit_type(DType dtype);
// Raises unless both have the same type and size; `name` is the name of b, for the message.
void check_alike(const TensorRef& a, const TensorRef& b, std::string_view name);

// A tensor in newly allocated host memory.
[[nodiscard]] TensorRef allocate_tensor(DType dtype, std::vector<std::uint64_t> shape);

}  // namespace driftless::python
