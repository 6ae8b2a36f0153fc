// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "kernels/reference/operations.h"

namespace driftless::reference {

std::uint64_t masked_overwrite(void* target, const void* source, std::uint64_t count,
                               unsigned unit_bytes, std::uint64_t sentinel) {
  auto* to = static_cast<std::byte*>(target);
  const auto* from = static_cast<const std::byte*>(source);
  std::uint64_t written = 0;
  for (std::uint64_t i = 0; i < count; ++i) {
    // Little-endian, so the sentinel's low bytes come first in memory.
    if (std::memcmp(from + i * unit_bytes, &sentinel, unit_bytes) == 0) continue;
    std::memcpy(to + i * unit_bytes, from + i * unit_bytes, unit_bytes);
    ++written;
  }
  return written;
}

}  // namespace driftless::reference
