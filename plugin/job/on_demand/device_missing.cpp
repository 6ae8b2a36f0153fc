// SPDX-License-Identifier: Apache-2.0
// device_access.h where CUDA is not in the build.
#include "plugin/job/on_demand/device_access.h"

namespace driftless {

Result<const DeviceTable*> device_table() {
  return error(StatusCode::kUnsupported, "CUDA is not in this build: ", DRIFTLESS_WHY_NOT_CUDA);
}

}  // namespace driftless
