// SPDX-License-Identifier: Apache-2.0
// DeltaView: the changed units of one stretch of one tensor, as kernels find them and formats
// encode them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace driftless {

// Unit `origin + offsets[k]` of tensor `tensor` has the new bits `values[k]`. Offsets ascend
// strictly and stay below 2^32 - 1; a tensor with more units is described by several views of
// ascending origins, so no array of 64-bit positions is ever held. A view owns nothing.
struct DeltaView {
  std::uint32_t tensor = 0;  // index in the WeightLayout
  unsigned unit_bytes = 1;   // 1, 2, 4 or 8
  std::uint64_t origin = 0;  // in units
  std::span<const std::uint32_t> offsets;
  const std::byte* values = nullptr;  // offsets.size() * unit_bytes bytes, any alignment

  [[nodiscard]] std::uint64_t count() const { return offsets.size(); }
  [[nodiscard]] std::span<const std::byte> value_bytes() const {
    return {values, offsets.size() * unit_bytes};
  }
};

}  // namespace driftless
