// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "kernels/cpu/baseline.h"

namespace driftless::cpu {
namespace {

// The prefetch distance: long enough for memory to answer in time, short enough that the lines are
// still in the L1 cache when used.
constexpr std::uint64_t kAhead = 48;

// Calls move(unit, value) with the addresses of all units and values. Prefetches the units, for
// writing or for reading.
template <typename Unit, bool kWrite, typename Units, typename Values, typename Move>
void each_unit(Units* units, const std::uint32_t* offsets, std::uint64_t count, Values* values,
               const Move& move) {
  const auto at = [&](std::uint64_t k) { return units + std::uint64_t{offsets[k]} * sizeof(Unit); };
  std::uint64_t k = 0;
  for (; k + kAhead < count; ++k) {
    __builtin_prefetch(at(k + kAhead), kWrite ? 1 : 0);
    move(at(k), values + k * sizeof(Unit));
  }
  for (; k < count; ++k) move(at(k), values + k * sizeof(Unit));
}

// Changes per block: the cache lines of their units stay in the L1 cache between prefetch and use.
constexpr unsigned kStridedBlock = 128;

// The targets of the next changes of a stream, block by block. Positions ascend, so a comparison
// with a run's end shows when it is left, and divisions are needed only once per run.
class StridedWalk {
 public:
  StridedWalk(const StridedMap& map, std::uint64_t origin) : map_(map), origin_(origin) {}

  // Writes the targets of `count` changes, at most kStridedBlock; kOutside for a change outside of
  // the map. Returns the number of changes inside.
  unsigned next(const std::uint32_t* offsets, unsigned count, std::uint64_t* targets) {
    unsigned inside = 0;
    for (unsigned k = 0; k < count; ++k) {
      const std::uint64_t position = origin_ + offsets[k];
      if (position >= run_.end) run_ = map_.run_at(position);
      const bool outside = run_.target == StridedMap::kOutside;
      targets[k] =
          outside ? StridedMap::kOutside : run_.target + (position - run_.begin) * run_.step;
      inside += outside ? 0 : 1;
    }
    return inside;
  }

 private:
  const StridedMap& map_;
  std::uint64_t origin_;
  StridedMap::Run run_;
};

// Calls move(k, unit) with the unit's address for every change in the map; returns their number.
template <typename Unit, bool kWrite, typename Units, typename Move>
std::uint64_t each_strided(const StridedMap& map, Units* units, std::uint64_t origin,
                           const std::uint32_t* offsets, std::uint64_t count, const Move& move) {
  StridedWalk walk(map, origin);
  std::uint64_t targets[kStridedBlock];
  std::uint64_t found = 0;
  for (std::uint64_t done = 0; done < count; done += kStridedBlock) {
    const auto block =
        static_cast<unsigned>(count - done < kStridedBlock ? count - done : kStridedBlock);
    const unsigned inside = walk.next(offsets + done, block, targets);
    found += inside;
    if (inside == 0) continue;
    for (unsigned k = 0; k < block; ++k) {
      if (targets[k] == StridedMap::kOutside) continue;
      __builtin_prefetch(units + targets[k] * sizeof(Unit), kWrite ? 1 : 0);
    }
    for (unsigned k = 0; k < block; ++k) {
      if (targets[k] != StridedMap::kOutside) move(done + k, units + targets[k] * sizeof(Unit));
    }
  }
  return found;
}

}  // namespace

void gather(const void* units, unsigned unit_bytes, const std::uint32_t* offsets,
            std::uint64_t count, void* values) {
  with_cast(ValueCast::kNone, unit_bytes, [&](auto same) {
    using Unit = typename decltype(same)::To;
    each_unit<Unit, false>(static_cast<const unsigned char*>(units), offsets, count,
                           static_cast<unsigned char*>(values),
                           [](auto* unit, auto* value) { std::memcpy(value, unit, sizeof(Unit)); });
  });
}

void scatter(void* units, unsigned unit_bytes, const std::uint32_t* offsets, std::uint64_t count,
             const void* values) {
  with_cast(ValueCast::kNone, unit_bytes, [&](auto same) {
    using Unit = typename decltype(same)::To;
    each_unit<Unit, true>(static_cast<unsigned char*>(units), offsets, count,
                          static_cast<const unsigned char*>(values),
                          [](auto* unit, auto* value) { std::memcpy(unit, value, sizeof(Unit)); });
  });
}

std::uint64_t gather_strided(const StridedMap& map, const void* target, unsigned unit_bytes,
                             std::uint64_t origin, const std::uint32_t* offsets,
                             std::uint64_t count, void* values) {
  return with_cast(ValueCast::kNone, unit_bytes, [&](auto same) {
    using Unit = typename decltype(same)::To;
    auto* const to = static_cast<unsigned char*>(values);
    return each_strided<Unit, false>(map, static_cast<const unsigned char*>(target), origin,
                                     offsets, count,
                                     [to](std::uint64_t k, const unsigned char* unit) {
                                       std::memcpy(to + k * sizeof(Unit), unit, sizeof(Unit));
                                     });
  });
}

std::uint64_t scatter_strided(const StridedMap& map, void* target, unsigned unit_bytes,
                              std::uint64_t origin, const std::uint32_t* offsets,
                              std::uint64_t count, const void* values, ValueCast cast) {
  return with_cast(cast, unit_bytes, [&](auto conversion) {
    using From = typename decltype(conversion)::From;
    using To = typename decltype(conversion)::To;
    const auto* const from = static_cast<const unsigned char*>(values);
    return each_strided<To, true>(map, static_cast<unsigned char*>(target), origin, offsets, count,
                                  [from](std::uint64_t k, unsigned char* unit) {
                                    From value;
                                    std::memcpy(&value, from + k * sizeof(From), sizeof(From));
                                    const To converted = decltype(conversion)::apply(value);
                                    std::memcpy(unit, &converted, sizeof(To));
                                  });
  });
}

}  // namespace driftless::cpu
