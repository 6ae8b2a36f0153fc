// SPDX-License-Identifier: Apache-2.0
#include "plugin/device/uploader.h"

#include <algorithm>
#include <cstring>

namespace driftless {

Result<Uploader> Uploader::make() {
  Uploader uploader;
  for (Slot& slot : uploader.slots_) {
    DRIFTLESS_ASSIGN_OR_RETURN(slot.buffer, DeviceBuffer::pinned(kSlotBytes));
    DRIFTLESS_ASSIGN_OR_RETURN(slot.travelled, DeviceEvent::make());
  }
  return uploader;
}

std::uint64_t Uploader::pinned_bytes() const {
  std::uint64_t sum = 0;
  for (const Slot& slot : slots_) sum += slot.buffer.size();
  return sum;
}

Status Uploader::copy(std::byte* to_dev, std::span<const std::byte> from,
                      const DeviceStream& stream) {
  while (!from.empty()) {
    const auto piece = from.first(std::min<std::uint64_t>(from.size(), kSlotBytes));
    Slot& slot = next();
    DRIFTLESS_RETURN_IF_ERROR(slot.travelled.wait());
    std::memcpy(slot.buffer.data(), piece.data(), piece.size());
    DRIFTLESS_RETURN_IF_ERROR(stream.copy(to_dev, slot.buffer.data(), piece.size()));
    DRIFTLESS_RETURN_IF_ERROR(slot.travelled.record(stream));
    to_dev += piece.size();
    from = from.subspan(piece.size());
  }
  return {};
}

// While one slot is emptied the next one is on its way.
Status Uploader::read(std::span<std::byte> to, const std::byte* from_dev,
                      const DeviceStream& stream) {
  std::span<std::byte> waiting;  // goes to `last`
  Slot* last = nullptr;
  const auto empty_last = [&]() -> Status {
    if (last == nullptr) return {};
    DRIFTLESS_RETURN_IF_ERROR(last->travelled.wait());
    std::memcpy(waiting.data(), last->buffer.data(), waiting.size());
    return {};
  };
  while (!to.empty()) {
    const auto piece = to.first(std::min<std::uint64_t>(to.size(), kSlotBytes));
    Slot& slot = next();
    DRIFTLESS_RETURN_IF_ERROR(slot.travelled.wait());
    DRIFTLESS_RETURN_IF_ERROR(stream.copy(slot.buffer.data(), from_dev, piece.size()));
    DRIFTLESS_RETURN_IF_ERROR(slot.travelled.record(stream));
    DRIFTLESS_RETURN_IF_ERROR(empty_last());
    last = &slot;
    waiting = piece;
    from_dev += piece.size();
    to = to.subspan(piece.size());
  }
  return empty_last();
}

}  // namespace driftless
