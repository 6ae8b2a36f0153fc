// SPDX-License-Identifier: Apache-2.0
// Where the next changes of a stream go, block by block: positions ascend, so a run of the map is
// left by comparing with its end, and divisions are made once per run.
#pragma once

#include "kernels/strided_map.h"

namespace driftless::cpu {

// The lines that a block's units lie in stay in the first cache between asking for them and use.
inline constexpr unsigned kStridedBlock = 128;

class StridedWalk {
 public:
  StridedWalk(const StridedMap& map, std::uint64_t origin) : map_(map), origin_(origin) {}

  // The targets of `count` changes, at most kStridedBlock; kOutside among them. Returns how many
  // are not.
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

}  // namespace driftless::cpu
