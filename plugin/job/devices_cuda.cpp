// SPDX-License-Identifier: Apache-2.0
// devices.h where CUDA is in the build.
#include "plugin/device/device_masked.h"
#include "plugin/device/device_side.h"
#include "plugin/device/device_weight_memory.h"
#include "plugin/job/devices.h"

namespace driftless {

Result<std::shared_ptr<DeviceSide>> open_device(const Config& config) {
  if (config.gpu.snapshot == SnapshotPlace::kHost) return std::shared_ptr<DeviceSide>();
  return make_device_side(config.gpu);
}

Result<std::unique_ptr<DeviceTarget>> open_device_target(const Config& config,
                                                         const std::optional<std::string>& base) {
  DeviceTargetOptions options;
  options.device = config.gpu.device;
  options.threads = config.receiver.threads;
  return make_owned_device_target(posix_file_system(), base, options);
}

Result<std::shared_ptr<WeightMemory>> open_device_memory(int device) {
  return make_device_memory(device);
}

Result<std::unique_ptr<MaskedDevice>> open_masked_device(int device) {
  return make_masked_device(device);
}

}  // namespace driftless
