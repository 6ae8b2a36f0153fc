// SPDX-License-Identifier: Apache-2.0
// devices.h where CUDA is in the build.
#include "plugin/job/devices.h"

namespace driftless {

Result<std::shared_ptr<PublisherDevice>> open_device(const Config& config, MemoryKind weights) {
  if (!on_gpu(config, weights)) return std::shared_ptr<PublisherDevice>();
  return make_publisher_device(config.gpu);
}

}  // namespace driftless
