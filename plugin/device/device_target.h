// SPDX-License-Identifier: Apache-2.0
// Weights in the memory of a GPU, as a receiver's target: contiguous tensors in a mapped target
// (plugin/targets/mapped_target.h) over a GPU's memory (device_weight_memory.h). Library
// driftless_device; includes no CUDA header.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/file_system.h"
#include "core/layout.h"
#include "core/status.h"
#include "plugin/targets/weight_target.h"

namespace driftless {

struct DeviceTargetOptions {
  int device = 0;
  // What staging may take of the GPU's memory; a version that needs more is refused (kNoSpace). 0:
  // as much as there is.
  std::uint64_t max_staging_bytes = 0;
  unsigned threads = 0;  // for what is decoded on the host; 0: default_threads()
};

using DeviceTarget = MappedTarget;

// `data_dev[i]` is tensor i of the layout in the device's memory, at a multiple of its unit,
// writable and owned by the caller; null where this process does not hold it, as for
// make_memory_target(). With `initial` the bytes there are that version: they are read once, and
// must be there already, since no other stream is waited for.
[[nodiscard]] Result<std::unique_ptr<DeviceTarget>> make_device_target(
    const WeightLayout& layout, std::vector<std::byte*> data_dev, std::optional<VersionId> initial,
    const DeviceTargetOptions& options);
// The same in memory of its own, as make_owned_target().
[[nodiscard]] Result<std::unique_ptr<DeviceTarget>> make_owned_device_target(
    FileSystem& fs, const std::optional<std::string>& base, const DeviceTargetOptions& options);

}  // namespace driftless
