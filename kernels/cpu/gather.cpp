// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "kernels/cpu/operations.h"

namespace driftless::cpu {
namespace {

// Far enough ahead that memory answers in time, near enough that the lines stay in the first cache.
constexpr std::uint64_t kAhead = 48;

template <typename Unit>
void gather_units(const void* units, const std::uint32_t* offsets, std::uint64_t count,
                  void* values) {
  const auto* from = static_cast<const unsigned char*>(units);
  auto* to = static_cast<unsigned char*>(values);
  const auto move = [&](std::uint64_t k) {
    std::memcpy(to + k * sizeof(Unit), from + std::uint64_t{offsets[k]} * sizeof(Unit),
                sizeof(Unit));
  };
  std::uint64_t k = 0;
  for (; k + kAhead < count; ++k) {
    __builtin_prefetch(from + std::uint64_t{offsets[k + kAhead]} * sizeof(Unit));
    move(k);
  }
  for (; k < count; ++k) move(k);
}

}  // namespace

void gather(const void* units, unsigned unit_bytes, const std::uint32_t* offsets,
            std::uint64_t count, void* values) {
  switch (unit_bytes) {
    case 1: return gather_units<std::uint8_t>(units, offsets, count, values);
    case 2: return gather_units<std::uint16_t>(units, offsets, count, values);
    case 4: return gather_units<std::uint32_t>(units, offsets, count, values);
    default: return gather_units<std::uint64_t>(units, offsets, count, values);
  }
}

}  // namespace driftless::cpu
