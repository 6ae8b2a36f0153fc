// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "kernels/cpu/operations.h"
#include "kernels/cpu/strided_block.h"
#include "kernels/value_cast.h"

namespace driftless::cpu {
namespace {

template <typename Cast>
std::uint64_t scatter_units(const StridedMap& map, unsigned char* to, std::uint64_t origin,
                            const std::uint32_t* offsets, std::uint64_t count,
                            const unsigned char* from) {
  using From = typename Cast::From;
  using To = typename Cast::To;
  StridedWalk walk(map, origin);
  std::uint64_t targets[kStridedBlock];
  std::uint64_t written = 0;
  for (std::uint64_t done = 0; done < count; done += kStridedBlock) {
    const auto block =
        static_cast<unsigned>(count - done < kStridedBlock ? count - done : kStridedBlock);
    const unsigned inside = walk.next(offsets + done, block, targets);
    written += inside;
    if (inside == 0) continue;
    for (unsigned k = 0; k < block; ++k) {
      if (targets[k] != StridedMap::kOutside) __builtin_prefetch(to + targets[k] * sizeof(To), 1);
    }
    for (unsigned k = 0; k < block; ++k) {
      if (targets[k] == StridedMap::kOutside) continue;
      From value;
      std::memcpy(&value, from + (done + k) * sizeof(From), sizeof(From));
      const To converted = Cast::apply(value);
      std::memcpy(to + targets[k] * sizeof(To), &converted, sizeof(To));
    }
  }
  return written;
}

}  // namespace

std::uint64_t scatter_strided(const StridedMap& map, void* target, unsigned unit_bytes,
                              std::uint64_t origin, const std::uint32_t* offsets,
                              std::uint64_t count, const void* values, ValueCast cast) {
  return with_cast(cast, unit_bytes, [&](auto conversion) {
    return scatter_units<decltype(conversion)>(map, static_cast<unsigned char*>(target), origin,
                                               offsets, count,
                                               static_cast<const unsigned char*>(values));
  });
}

}  // namespace driftless::cpu
