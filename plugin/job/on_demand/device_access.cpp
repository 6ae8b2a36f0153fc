// SPDX-License-Identifier: Apache-2.0
// Loads the CUDA library, if CUDA is in the build.
#include "plugin/job/on_demand/device_access.h"
#include "plugin/job/devices.h"
#include "plugin/job/on_demand/loaded_library.h"

namespace driftless {

Result<const DeviceTable*> device_table() {
  // Empty: CUDA is in the build.
  // NOLINTNEXTLINE(readability-redundant-string-init)
  constexpr std::string_view kWhyNot{DRIFTLESS_WHY_NOT_CUDA};
  if (!kWhyNot.empty()) {
    return error(StatusCode::kUnsupported, "CUDA is not in this build: ", kWhyNot);
  }
  DRIFTLESS_ASSIGN_OR_RETURN(const void* const table,
                             load_table(kDeviceLibraryName, kDeviceLibrarySymbol, "CUDA"));
  return static_cast<const DeviceTable*>(table);
}

Result<std::shared_ptr<PublisherDevice>> open_device(const Config& config, MemoryKind weights) {
  if (!on_gpu(config, weights)) return std::shared_ptr<PublisherDevice>();
  const auto table = device_table();
  if (table.ok()) return (*table)->make_publisher(config.gpu);
  return table.status().with_context(concat("snapshot: ", to_string(config.gpu.snapshot)));
}

Result<std::shared_ptr<WeightMemory>> make_device_memory(int device) {
  DRIFTLESS_ASSIGN_OR_RETURN(const DeviceTable* const table, device_table());
  return table->make_memory(device);
}

Result<std::unique_ptr<MaskedDevice>> make_masked_device(int device) {
  DRIFTLESS_ASSIGN_OR_RETURN(const DeviceTable* const table, device_table());
  return table->make_masked(device);
}

Result<std::vector<Hash128>> device_xxh3_128(
    std::span<const std::span<const std::byte>> stretches) {
  DRIFTLESS_ASSIGN_OR_RETURN(const DeviceTable* const table, device_table());
  return table->hash(stretches);
}

}  // namespace driftless
