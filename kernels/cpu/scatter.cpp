// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "kernels/cpu/operations.h"

namespace driftless::cpu {
namespace {

// Far enough ahead that memory answers in time, near enough that the lines stay in the first cache.
constexpr std::uint64_t kScatterAhead = 48;

template <typename Unit>
void scatter_units(void* units, const std::uint32_t* offsets, std::uint64_t count,
                   const void* values) {
  auto* to = static_cast<unsigned char*>(units);
  const auto* from = static_cast<const unsigned char*>(values);
  const auto move = [&](std::uint64_t k) {
    std::memcpy(to + std::uint64_t{offsets[k]} * sizeof(Unit), from + k * sizeof(Unit),
                sizeof(Unit));
  };
  std::uint64_t k = 0;
  for (; k + kScatterAhead < count; ++k) {
    __builtin_prefetch(to + std::uint64_t{offsets[k + kScatterAhead]} * sizeof(Unit), 1);
    move(k);
  }
  for (; k < count; ++k) move(k);
}

}  // namespace

void scatter(void* units, unsigned unit_bytes, const std::uint32_t* offsets, std::uint64_t count,
             const void* values) {
  switch (unit_bytes) {
    case 1: return scatter_units<std::uint8_t>(units, offsets, count, values);
    case 2: return scatter_units<std::uint16_t>(units, offsets, count, values);
    case 4: return scatter_units<std::uint32_t>(units, offsets, count, values);
    default: return scatter_units<std::uint64_t>(units, offsets, count, values);
  }
}

}  // namespace driftless::cpu
