// SPDX-License-Identifier: Apache-2.0
// device_access.h where CUDA is in the build.
#include "plugin/job/on_demand/device_access.h"
#include "plugin/job/on_demand/loaded_library.h"

namespace driftless {

Result<const DeviceTable*> device_table() {
  DRIFTLESS_ASSIGN_OR_RETURN(const void* const table,
                             load_table(kDeviceLibraryName, kDeviceLibrarySymbol, "CUDA"));
  return static_cast<const DeviceTable*>(table);
}

}  // namespace driftless
