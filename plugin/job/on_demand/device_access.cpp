// SPDX-License-Identifier: Apache-2.0
// Loads the library, if CUDA is in the build.
#include "plugin/job/on_demand/device_access.h"
#include "plugin/job/on_demand/loaded_library.h"

namespace driftless {

Result<const DeviceTable*> device_table() {
  // Empty: it is. NOLINTNEXTLINE(readability-redundant-string-init)
  constexpr std::string_view kWhyNot{DRIFTLESS_WHY_NOT_CUDA};
  if (!kWhyNot.empty()) {
    return error(StatusCode::kUnsupported, "CUDA is not in this build: ", kWhyNot);
  }
  DRIFTLESS_ASSIGN_OR_RETURN(const void* const table,
                             load_table(kDeviceLibraryName, kDeviceLibrarySymbol, "CUDA"));
  return static_cast<const DeviceTable*>(table);
}

}  // namespace driftless
