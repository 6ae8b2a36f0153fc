// SPDX-License-Identifier: Apache-2.0
// StridedMap maps units of a tensor to places in other memory. It pairs a view of the tensor
// (offset, shape, strides) with a view of the other memory, of the same shape, as a copy between
// two strided views does. Examples: rows or columns of a tensor, its transpose, an expert in a
// stack.
//
// make() orders and joins the dimensions once. A lookup then needs no division in a whole tensor or
// in rows of one, and one division in columns. A plain value; device code reads it as it is.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "core/status.h"

namespace driftless {

struct StridedView {
  std::uint64_t offset = 0;  // in units, like the strides
  std::vector<std::uint64_t> shape;
  std::vector<std::uint64_t> strides;
};

struct StridedMap {
  static constexpr std::uint32_t kMaxDims = 6;  // after joining
  static constexpr std::uint64_t kOutside = ~std::uint64_t{0};

  struct Dim {
    std::uint64_t size = 1;
    std::uint64_t source_stride = 1;
    std::uint64_t target_stride = 1;
    bool operator==(const Dim&) const = default;
  };
  // Units [begin, end) of the source, which map to `target`, target + step, ... If target is
  // kOutside, they are not in the view.
  struct Run {
    std::uint64_t begin = 0, end = 0;
    std::uint64_t target = kOutside;
    std::uint64_t step = 1;
  };

  std::uint64_t source_offset = 0, source_end = 0;  // the view's first unit, and one past its last
  std::uint64_t target_offset = 0, target_end = 0;
  std::uint32_t dims = 0;
  Dim dim[kMaxDims];  // descending source strides
  bool operator==(const StridedMap&) const = default;

  // `source` views a tensor of `source_units`, `target` memory of `target_units`. kInvalidArgument
  // for different shapes, for views that reach past the end or contain a unit twice (an expanded
  // view), and for more than kMaxDims dimensions.
  [[nodiscard]] static Result<StridedMap> make(const StridedView& source,
                                               std::uint64_t source_units,
                                               const StridedView& target,
                                               std::uint64_t target_units);

  // Maps a whole tensor to itself.
  [[nodiscard]] static constexpr StridedMap whole(std::uint64_t units) {
    StridedMap map;
    map.source_end = map.target_end = units;
    if (units > 1) map.dim[map.dims++] = {units, 1, 1};
    return map;
  }

  // The number of units in the view.
  [[nodiscard]] constexpr std::uint64_t units() const {
    std::uint64_t all = source_end > source_offset ? 1 : 0;
    for (std::uint32_t d = 0; d < dims; ++d) all *= dim[d].size;
    return all;
  }
  // Whether the view contains every unit of [source_offset, source_end).
  [[nodiscard]] constexpr bool solid() const { return units() == source_end - source_offset; }
  // Whether the whole view is one run with target step 1: a copy.
  [[nodiscard]] constexpr bool plain() const {
    return dims == 0 || (dims == 1 && dim[0].source_stride == 1 && dim[0].target_stride == 1);
  }

  // The dimension along which units adjoin in the target, if they do not adjoin along it in the
  // source (a transpose). Otherwise `dims`.
  [[nodiscard]] constexpr std::uint32_t crossing() const {
    if (dims < 2 || dim[dims - 1].source_stride != 1 || dim[dims - 1].target_stride == 1) {
      return dims;
    }
    std::uint32_t d = 0;
    while (d < dims && dim[d].target_stride != 1) ++d;
    return d;
  }

  // The target place of the source's unit `position`, or kOutside.
  [[nodiscard]] constexpr std::uint64_t target_of(std::uint64_t position) const {
    if (position < source_offset || position >= source_end) return kOutside;
    std::uint64_t rest = position - source_offset;
    std::uint64_t target = target_offset;
    for (std::uint32_t d = 0; d < dims; ++d) {
      const std::uint64_t index = divide(rest, dim[d].source_stride);
      if (index >= dim[d].size) return kOutside;
      rest -= index * dim[d].source_stride;
      target += index * dim[d].target_stride;
    }
    return rest == 0 ? target : kOutside;
  }

  // A run that contains `position`. A view with several dimensions may have a longer one, which
  // would cost more divisions to find.
  [[nodiscard]] constexpr Run run_at(std::uint64_t position) const {
    if (position >= source_end) return {position, kOutside, kOutside, 1};
    if (position < source_offset) return {position, source_offset, kOutside, 1};
    std::uint64_t base = source_offset, target = target_offset, next = source_end;
    for (std::uint32_t d = 0; d < dims; ++d) {
      const Dim& dimension = dim[d];
      if (dimension.source_stride == 1) {  // the innermost
        if (position - base < dimension.size) {
          return {base, base + dimension.size, target, dimension.target_stride};
        }
        return {position, next, kOutside, 1};
      }
      const std::uint64_t index = divide(position - base, dimension.source_stride);
      if (index >= dimension.size) return {position, next, kOutside, 1};
      base += index * dimension.source_stride;
      target += index * dimension.target_stride;
      next = base + dimension.source_stride < next ? base + dimension.source_stride : next;
    }
    if (position == base) return {base, base + 1, target, 1};
    return {position, next, kOutside, 1};
  }

 private:
  // Uses a 32-bit division if possible, because it is several times faster.
  [[nodiscard]] static constexpr std::uint64_t divide(std::uint64_t a, std::uint64_t b) {
    if (((a | b) >> 32) == 0) return static_cast<std::uint32_t>(a) / static_cast<std::uint32_t>(b);
    return a / b;
  }
};

enum class MapSide : std::uint8_t { kSource, kTarget };
// One side of a map, in memory whose unit 0 is at byte `address`.
struct PlacedMap {
  const StridedMap* map = nullptr;
  std::uint64_t address = 0;
  unsigned unit_bytes = 1;
};
// The indices of two maps that share a byte on this side; empty if there are none. Exact:
// interleaved columns of one matrix do not share bytes. O(maps), or O(runs) for maps that
// interleave without a common step.
[[nodiscard]] std::optional<std::pair<std::size_t, std::size_t>> find_meeting(
    std::span<const PlacedMap> maps, MapSide side);
// The same for two maps in the same memory.
[[nodiscard]] bool meet(const StridedMap& a, const StridedMap& b, MapSide side);

// Whether the maps, all of one tensor of `units`, together contain every unit exactly once.
[[nodiscard]] bool covers_once(std::span<const StridedMap* const> maps, std::uint64_t units);

}  // namespace driftless
