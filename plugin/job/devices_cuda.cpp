// SPDX-License-Identifier: Apache-2.0
// devices.h where CUDA is in the build.
#include "plugin/job/devices.h"
#include "plugin/targets/mapped_target.h"

namespace driftless {

Result<std::shared_ptr<PublisherDevice>> open_device(const Config& config) {
  if (config.gpu.snapshot == SnapshotPlace::kHost) return std::shared_ptr<PublisherDevice>();
  return make_publisher_device(config.gpu);
}

Result<std::unique_ptr<DeviceTarget>> open_device_target(const Config& config,
                                                         const std::optional<std::string>& base) {
  DRIFTLESS_ASSIGN_OR_RETURN(std::shared_ptr<WeightMemory> memory,
                             make_device_memory(config.gpu.device));
  return make_owned_target(posix_file_system(), base, config.receiver.threads, std::move(memory));
}

}  // namespace driftless
