// SPDX-License-Identifier: Apache-2.0
// The operations of kernels.cpp for CUDA tensors, on the caller's stream. They load CUDA
// (plugin/job/on_demand/device_access.h), and raise UnsupportedError with the reason if CUDA cannot
// be loaded.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <optional>
#include <string>

#include "core/digest.h"
#include "core/parallel.h"
#include "module/tensor_ref.h"

namespace driftless::python {

// A cudaStream_t as a number (torch's Stream.cuda_stream); none: the default stream.
using StreamNumber = std::optional<std::uintptr_t>;
[[nodiscard]] inline void* stream_of(const StreamNumber& number) {
  return reinterpret_cast<void*>(number.value_or(0));  // NOLINT(performance-no-int-to-ptr)
}

[[nodiscard]] inline unsigned threads_or_default(unsigned threads) {
  return threads == 0 ? default_threads() : threads;
}

// Raises unless there is a value for each of `count` units of `to`.
void check_values(const TensorRef& values, const TensorRef& to, std::uint64_t count);

// All tensors must be on the device of the first one. Results are on that device, and complete.
[[nodiscard]] py::tuple diff_on_device(const TensorRef& before, const py::object& after,
                                       const StreamNumber& stream);
[[nodiscard]] TensorRef gather_on_device(const TensorRef& from, const py::object& positions,
                                         const StreamNumber& stream);
void scatter_on_device(const TensorRef& to, const py::object& positions, const py::object& values,
                       const StreamNumber& stream);
[[nodiscard]] std::uint64_t masked_overwrite_on_device(const TensorRef& to,
                                                       const py::object& source,
                                                       std::uint64_t sentinel,
                                                       const StreamNumber& stream);
[[nodiscard]] Digest digest_on_device(const std::string& name, const TensorRef& tensor,
                                      const StreamNumber& stream);

}  // namespace driftless::python
