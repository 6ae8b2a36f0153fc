// SPDX-License-Identifier: Apache-2.0
// DeviceArena: memory of one kind that is taken piece by piece and given back all at once. Blocks
// are kept for the next round: taking memory from a GPU stops it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/memory_kind.h"
#include "core/status.h"
#include "plugin/device/device_memory.h"

namespace driftless {

class DeviceArena {
 public:
  explicit DeviceArena(MemoryKind kind) : kind_(kind) {}
  // At a multiple of 256 bytes.
  [[nodiscard]] Result<std::byte*> take(std::uint64_t bytes);
  // Everything may be taken again. Blocks that the last round did not touch are freed.
  void reset();
  [[nodiscard]] std::uint64_t held_bytes() const;

 private:
  MemoryKind kind_;
  std::vector<DeviceBuffer> blocks_;
  std::size_t block_ = 0;   // the one that is being filled
  std::uint64_t used_ = 0;  // of it
};

}  // namespace driftless
