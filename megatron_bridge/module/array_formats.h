// SPDX-License-Identifier: Apache-2.0
// The spellings of element types by numpy, the buffer protocol and DLPack, and ours; tensors
// through DLPack capsules, in and out.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "core/dtype.h"
#include "core/status.h"
#include "module/dlpack.h"
#include "module/tensor_ref.h"

namespace driftless::python {

// "<f4"; types that numpy only carries ("<V2") are told by the name that ml_dtypes gives them.
[[nodiscard]] Result<DType> dtype_of_typestr(std::string_view typestr, std::string_view name);
// The struct module's.
[[nodiscard]] Result<DType> dtype_of_format(std::string_view format, std::size_t item_bytes);
[[nodiscard]] Result<DType> dtype_of_dlpack(const dlpack::Type& type);
[[nodiscard]] Result<dlpack::Type> dlpack_of(DType dtype);

// Strides in units of `unit` bytes' worth (unit 1: already in elements).
[[nodiscard]] bool contiguous(std::span<const std::uint64_t> shape,
                              std::span<const std::int64_t> strides, std::uint64_t unit);

// The tensor as a buffer. Types that the struct module has not appear as unsigned integers, those
// below a byte as their bytes.
[[nodiscard]] pybind11::buffer_info buffer_of(TensorRef& ref);

// Asks for the versioned capsule, and takes the older one if the producer knows no other. The
// producer's memory is kept until the owner of the result goes. size_bytes is left to the caller.
[[nodiscard]] TensorRef from_dlpack(const pybind11::object& producer, std::string_view name);

// DLPack's number of the tensor's device.
[[nodiscard]] std::int32_t dlpack_device(const TensorRef& ref);

// __dlpack__(*, stream=None, max_version=None, dl_device=None, copy=None) of a TensorRef. The
// capsule keeps `self` alive. Nothing is ever copied; copy=True is refused.
[[nodiscard]] pybind11::capsule to_dlpack(const pybind11::object& self,
                                          const pybind11::kwargs& options);

}  // namespace driftless::python
