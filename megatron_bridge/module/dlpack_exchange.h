// SPDX-License-Identifier: Apache-2.0
// Tensors through DLPack capsules, in and out.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <string_view>

#include "module/tensor_ref.h"

namespace driftless::python {

// Asks for the versioned capsule, and takes the older one where the producer knows no other. The
// producer's memory is kept until the owner of the result goes. size_bytes is left to the caller.
[[nodiscard]] TensorRef from_dlpack(const pybind11::object& producer, std::string_view name);

// DLPack's number of the tensor's device.
[[nodiscard]] std::int32_t dlpack_device(const TensorRef& ref);

// __dlpack__(*, stream=None, max_version=None, dl_device=None, copy=None) of a TensorRef. The
// capsule keeps `self` alive. Nothing is ever copied; copy=True is refused.
[[nodiscard]] pybind11::capsule to_dlpack(const pybind11::object& self,
                                          const pybind11::kwargs& options);

}  // namespace driftless::python
