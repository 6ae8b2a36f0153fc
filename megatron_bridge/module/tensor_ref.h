// SPDX-License-Identifier: Apache-2.0
// TensorRef: a contiguous tensor of somebody else's memory, with what keeps it alive. How tensors
// come in from Python, and how ours go out.
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
  // Unsigned integers of numpy, which stand for types that numpy has not.
  bool plain_bits = false;
  py::object owner;                    // of Python memory; touched with the GIL only
  std::shared_ptr<const void> memory;  // of ours

  [[nodiscard]] bool on_host() const { return device == DeviceKind::kCpu; }
  void set_cuda(int number);

  // Memory of ours on the host, of this type and shape.
  [[nodiscard]] static TensorRef of(const TensorSpec& spec, std::byte* data,
                                    std::shared_ptr<const void> memory);
  // The same, which others only read.
  [[nodiscard]] static TensorRef read_only_of(const TensorSpec& spec, const std::byte* data,
                                              std::shared_ptr<const void> memory);
};

// Memory of which Python knows the address.
[[nodiscard]] inline std::byte* memory_at(std::uint64_t address) {
  const auto number = static_cast<std::uintptr_t>(address);
  return reinterpret_cast<std::byte*>(number);  // NOLINT(performance-no-int-to-ptr)
}

// What the object is, by whichever way it can be looked at. `name` stands in the messages of what
// is raised: not contiguous, of a type that safetensors has not, not in native byte order.
[[nodiscard]] TensorRef tensor_ref(const py::object& object, std::string_view name);

// Of this type and shape, on the host or a GPU. Unsigned integers pass for a type of the same
// width.
[[nodiscard]] Status check_tensor(const TensorRef& ref, const TensorSpec& spec);
[[nodiscard]] Status check_on_host(const TensorRef& ref, std::string_view name);
[[nodiscard]] Status check_writable(const TensorRef& ref, std::string_view name);
[[nodiscard]] std::uint64_t units_of(const TensorRef& ref);
// The type of single units: the tensor's own, or bytes for types of less than 8 bits.
[[nodiscard]] DType unit_type(DType dtype);
// Raises if the two are not of the same type and size; `name` is b's.
void check_alike(const TensorRef& a, const TensorRef& b, std::string_view name);

// Fresh memory of ours, zeroed if it is new.
[[nodiscard]] TensorRef own_tensor(DType dtype, std::vector<std::uint64_t> shape);

}  // namespace driftless::python
