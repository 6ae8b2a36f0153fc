// SPDX-License-Identifier: Apache-2.0
// Weights on a GPU without linking CUDA. plugin/device is in a library that is loaded on demand
// (loaded_library.h); only that library contains GPU code. In a build without CUDA there is no such
// library, and every call returns kUnsupported. The functions of device_factories.h and devices.h
// are served from it, too.
#pragma once

#include <memory>
#include <span>

#include "core/status.h"
#include "kernels/device_hash.h"
#include "plugin/device/device_factories.h"
#include "plugin/device/tensor_kernels.h"
#include "plugin/targets/weight_memory.h"

namespace driftless {

inline constexpr const char* kDeviceLibraryName = "libdriftless_device.so";
inline constexpr const char* kDeviceLibrarySymbol = "driftless_device_table";

// The functions of the library.
struct DeviceTable {
  const char* build = nullptr;
  // check_device(): kUnsupported if this process has no such GPU. Makes the device current.
  Status (*check)(int device) = nullptr;
  // make_device_memory().
  Result<std::shared_ptr<WeightMemory>> (*make_memory)(int device) = nullptr;
  // check_device_memory().
  Status (*check_memory)(const void* data, int device) = nullptr;
  // Waits until all work queued on these streams of the device is done (cudaStream_t; null: the
  // default stream).
  Status (*wait)(int device, std::span<void* const> streams) = nullptr;
  // plugin/device/tensor_kernels.h.
  decltype(&allocate_on_device) allocate = nullptr;
  decltype(&gather_on_device) gather = nullptr;
  decltype(&scatter_on_device) scatter = nullptr;
  decltype(&masked_overwrite_on_device) masked_overwrite = nullptr;
  decltype(&diff_on_device) diff = nullptr;
  decltype(&digest_on_device) digest = nullptr;
  // plugin/device/device_factories.h, kernels/device_hash.h.
  decltype(&make_publisher_device) make_publisher = nullptr;
  decltype(&make_masked_device) make_masked = nullptr;
  decltype(&device_xxh3_128) hash = nullptr;
};

// Loads the library. kUnsupported, with the reason.
[[nodiscard]] Result<const DeviceTable*> device_table();

}  // namespace driftless
