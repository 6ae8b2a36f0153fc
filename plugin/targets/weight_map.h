// SPDX-License-Identifier: Apache-2.0
// WeightMap: one place where units of a checkpoint's tensor lie. A contiguous tensor is one map,
// the identity; a slice of a tensor-parallel group, a fused projection, a stacked expert and a
// caller's strided tensor are others.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "kernels/strided_map.h"
#include "kernels/value_cast.h"

namespace driftless {

struct WeightMap {
  std::uint32_t tensor = 0;   // in the layout
  std::byte* data = nullptr;  // unit 0 of the map's target; the caller's memory
  unsigned unit_bytes = 1;    // of the target
  StridedMap map;
  ValueCast cast = ValueCast::kNone;
  std::string parameter;  // for messages; empty: it is the tensor itself

  // Whether units that adjoin in the tensor adjoin there, with the same bits.
  [[nodiscard]] bool plain() const { return cast == ValueCast::kNone && map.plain(); }
  // Where unit `unit` of the tensor lies; the map is plain and has it.
  [[nodiscard]] std::byte* at(std::uint64_t unit) const {
    return data + (map.target_offset + (unit - map.source_offset)) * unit_bytes;
  }
};

}  // namespace driftless
