// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "kernels/cpu/operations.h"
#include "kernels/cpu/strided_block.h"
#include "kernels/value_cast.h"

namespace driftless::cpu {
namespace {

template <typename Unit>
std::uint64_t gather_units(const StridedMap& map, const unsigned char* from, std::uint64_t origin,
                           const std::uint32_t* offsets, std::uint64_t count, unsigned char* to) {
  StridedWalk walk(map, origin);
  std::uint64_t targets[kStridedBlock];
  std::uint64_t read = 0;
  for (std::uint64_t done = 0; done < count; done += kStridedBlock) {
    const auto block =
        static_cast<unsigned>(count - done < kStridedBlock ? count - done : kStridedBlock);
    const unsigned inside = walk.next(offsets + done, block, targets);
    read += inside;
    if (inside == 0) continue;
    for (unsigned k = 0; k < block; ++k) {
      if (targets[k] != StridedMap::kOutside) __builtin_prefetch(from + targets[k] * sizeof(Unit));
    }
    for (unsigned k = 0; k < block; ++k) {
      if (targets[k] == StridedMap::kOutside) continue;
      std::memcpy(to + (done + k) * sizeof(Unit), from + targets[k] * sizeof(Unit), sizeof(Unit));
    }
  }
  return read;
}

}  // namespace

std::uint64_t gather_strided(const StridedMap& map, const void* target, unsigned unit_bytes,
                             std::uint64_t origin, const std::uint32_t* offsets,
                             std::uint64_t count, void* values) {
  return with_cast(ValueCast::kNone, unit_bytes, [&](auto same) {
    return gather_units<typename decltype(same)::To>(map, static_cast<const unsigned char*>(target),
                                                     origin, offsets, count,
                                                     static_cast<unsigned char*>(values));
  });
}

}  // namespace driftless::cpu
