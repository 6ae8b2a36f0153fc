// SPDX-License-Identifier: Apache-2.0
// Implements devices.h in builds with CUDA.
#include "plugin/job/devices.h"

namespace driftless {

Result<std::shared_ptr<PublisherDevice>> open_device(const Config& config, MemoryKind weights) {
  if (!on_gpu(config, weights)) return std::shared_ptr<PublisherDevice>();
  return make_publisher_device(config.gpu);
}

}  // namespace driftless
