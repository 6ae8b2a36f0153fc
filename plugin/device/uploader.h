// SPDX-License-Identifier: Apache-2.0
// Copies host memory of any kind to the device, through two pinned buffers in turn: one is filled
// while the other travels. Part of the device target.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "core/status.h"
#include "plugin/device/device_memory.h"

namespace driftless {

// One thread at a time.
class Uploader {
 public:
  static constexpr std::uint64_t kSlotBytes = std::uint64_t{8} << 20;

  Uploader() = default;
  [[nodiscard]] static Result<Uploader> make();

  // Queues the copy on `stream`; `from` may go when it returns. Always with the same stream.
  [[nodiscard]] Status copy(std::byte* to_dev, std::span<const std::byte> from,
                            const DeviceStream& stream);
  // Fills `to` from the device; waits for it.
  [[nodiscard]] Status read(std::span<std::byte> to, const std::byte* from_dev,
                            const DeviceStream& stream);

  [[nodiscard]] std::uint64_t pinned_bytes() const;

 private:
  struct Slot {
    DeviceBuffer buffer;
    DeviceEvent travelled;
  };
  [[nodiscard]] Slot& next() { return slots_[turn_++ % slots_.size()]; }

  std::array<Slot, 2> slots_;
  std::size_t turn_ = 0;
};

}  // namespace driftless
