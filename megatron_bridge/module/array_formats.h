// SPDX-License-Identifier: Apache-2.0
// Translates element types between numpy, the buffer protocol, DLPack and DType, and imports and
// exports tensors as DLPack capsules.
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

// `typestr` as in "<f4". Types that numpy itself does not have ("<V2") are recognized by `name`,
// which ml_dtypes gives them.
[[nodiscard]] Result<DType> dtype_of_typestr(std::string_view typestr, std::string_view name);
// `format` as in Python's struct module.
[[nodiscard]] Result<DType> dtype_of_format(std::string_view format, std::size_t item_bytes);
[[nodiscard]] Result<DType> dtype_of_dlpack(const dlpack::Type& type);
[[nodiscard]] Result<dlpack::Type> dlpack_of(DType dtype);

// Whether the strides are those of a C-contiguous tensor. They count `unit` per element (1: they
// are in elements).
[[nodiscard]] bool contiguous(std::span<const std::uint64_t> shape,
                              std::span<const std::int64_t> strides, std::uint64_t unit);

// The tensor as a buffer. Types that the struct module does not have appear as unsigned integers,
// types below 8 bits as bytes.
[[nodiscard]] pybind11::buffer_info buffer_of(TensorRef& ref);

// Requests a versioned capsule, and accepts an unversioned one from older producers. The owner in
// the result keeps the producer's memory alive. The caller sets size_bytes.
[[nodiscard]] TensorRef from_dlpack(const pybind11::object& producer, std::string_view name);

// The type of the tensor's device, as a number of DLPack.
[[nodiscard]] std::int32_t dlpack_device(const TensorRef& ref);

// __dlpack__(*, stream=None, max_version=None, dl_device=None, copy=None) of a TensorRef. The
// capsule keeps `self` alive. Nothing is ever copied; copy=True is refused.
[[nodiscard]] pybind11::capsule to_dlpack(const pybind11::object& self,
                                          const pybind11::kwargs& options);

}  // namespace driftless::python
