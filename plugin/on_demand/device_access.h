// Targets on a GPU for a library that others load: plugin/device, without linking CUDA
// (loaded_library.h). In a build without CUDA there is no such library.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/layout.h"
#include "core/status.h"
#include "core/version.h"
#include "plugin/device/device_target.h"

namespace driftless {

inline constexpr const char* kDeviceLibraryName = "libdriftless_device.so";
inline constexpr const char* kDeviceLibrarySymbol = "driftless_device_table";

// What the library offers.
struct DeviceTable {
  const char* build = nullptr;
  // check_device(): kUnsupported where this process has no such GPU. The device becomes current.
  Status (*check)(int device) = nullptr;
  // make_device_target().
  Result<std::unique_ptr<DeviceTarget>> (*make_target)(
      const WeightLayout& layout, std::vector<std::byte*> data_dev,
      std::optional<VersionId> initial, const DeviceTargetOptions& options) = nullptr;
  // Until all that was queued on these streams (cudaStream_t; null: the default one) is done.
  Status (*wait)(std::span<void* const> streams) = nullptr;
  // The calling thread's device; -1 where there is none.
  int (*current)() = nullptr;
  void (*choose)(int device) = nullptr;
};

// Loads the library. kUnsupported, with the reason.
[[nodiscard]] Result<const DeviceTable*> device_table();

// Gives the calling thread its device back: an engine's threads have one of their own choice.
class DeviceKeeper {
 public:
  explicit DeviceKeeper(const DeviceTable* table)  // null: nothing to keep
      : table_(table), device_(table == nullptr ? -1 : table->current()) {}
  DeviceKeeper(const DeviceKeeper&) = delete;
  DeviceKeeper& operator=(const DeviceKeeper&) = delete;
  ~DeviceKeeper() {
    if (device_ >= 0) table_->choose(device_);
  }

 private:
  const DeviceTable* table_;
  int device_;
};

}  // namespace driftless
