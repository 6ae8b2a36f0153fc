// SPDX-License-Identifier: Apache-2.0
#include "plugin/device/device_target.h"

#include "plugin/device/device_weight_memory.h"
#include "plugin/targets/mapped_target.h"

namespace driftless {

Result<std::unique_ptr<DeviceTarget>> make_device_target(const WeightLayout& layout,
                                                         std::vector<std::byte*> data_dev,
                                                         std::optional<VersionId> initial,
                                                         const DeviceTargetOptions& options) {
  DRIFTLESS_ASSIGN_OR_RETURN(std::shared_ptr<WeightMemory> memory,
                             make_bounded_device_memory(options.device, options.max_staging_bytes));
  return make_contiguous_target(layout, data_dev, initial, options.threads, std::move(memory));
}

Result<std::unique_ptr<DeviceTarget>> make_owned_device_target(
    FileSystem& fs, const std::optional<std::string>& base, const DeviceTargetOptions& options) {
  DRIFTLESS_ASSIGN_OR_RETURN(std::shared_ptr<WeightMemory> memory,
                             make_bounded_device_memory(options.device, options.max_staging_bytes));
  return make_owned_target(fs, base, options.threads, std::move(memory));
}

}  // namespace driftless
