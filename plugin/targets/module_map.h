// ModuleMap: one place where units of a checkpoint's tensor live in a module.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "kernels/strided_map.h"
#include "kernels/value_cast.h"

namespace driftless {

struct ModuleMap {
  std::uint32_t tensor = 0;   // in the layout
  std::byte* data = nullptr;  // unit 0 of the map's target; the caller's memory
  unsigned unit_bytes = 1;    // of the target
  StridedMap map;
  ValueCast cast = ValueCast::kNone;
  std::string parameter;  // for messages
};

}  // namespace driftless
