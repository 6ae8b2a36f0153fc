// SPDX-License-Identifier: Apache-2.0
#include "kernels/strided_map.h"

#include <algorithm>
#include <utility>

namespace driftless {
namespace {

using Dim = StridedMap::Dim;

// One past the last unit that the strides reach from `offset`; kOutside where that overflows.
std::uint64_t end_of(std::uint64_t offset, std::span<const Dim> dims, std::uint64_t Dim::* stride) {
  constexpr std::uint64_t kMost = std::uint64_t{1} << 62;
  unsigned __int128 last = offset;
  for (const Dim& dim : dims) last += static_cast<unsigned __int128>(dim.size - 1) * (dim.*stride);
  return last >= kMost ? StridedMap::kOutside : static_cast<std::uint64_t>(last) + 1;
}

// Sorted by descending strides, every step leaps over all that lies inside it.
bool distinct(std::vector<Dim> dims, std::uint64_t Dim::* stride) {
  std::sort(dims.begin(), dims.end(),
            [&](const Dim& a, const Dim& b) { return a.*stride > b.*stride; });
  std::uint64_t inner = 0;  // the furthest that the dimensions inside reach
  for (auto dim = dims.rbegin(); dim != dims.rend(); ++dim) {
    if ((*dim).*stride <= inner) return false;
    inner += (dim->size - 1) * ((*dim).*stride);
  }
  return true;
}

// A dimension whose steps are those of the next one carried on is one with it.
std::vector<Dim> joined(const std::vector<Dim>& dims) {
  std::vector<Dim> out;
  for (const Dim& dim : dims) {
    if (!out.empty() && out.back().source_stride == dim.size * dim.source_stride &&
        out.back().target_stride == dim.size * dim.target_stride) {
      out.back() = {out.back().size * dim.size, dim.source_stride, dim.target_stride};
    } else {
      out.push_back(dim);
    }
  }
  return out;
}

Status check_side(const char* side, const std::vector<Dim>& dims, std::uint64_t Dim::* stride,
                  std::uint64_t end, std::uint64_t units) {
  if (end > units) {
    return error(StatusCode::kInvalidArgument, "the ", side, " view reaches past the ", units,
                 " units that are there");
  }
  if (distinct(dims, stride)) return {};
  return error(StatusCode::kInvalidArgument, "the ", side,
               " view has the same unit more than once (expanded, or overlapping)");
}

}  // namespace

Result<StridedMap> StridedMap::make(const StridedView& source, std::uint64_t source_units,
                                    const StridedView& target, std::uint64_t target_units) {
  if (source.shape != target.shape || source.strides.size() != source.shape.size() ||
      target.strides.size() != target.shape.size()) {
    return error(StatusCode::kInvalidArgument, "views of ", source.shape.size(), " and ",
                 target.shape.size(), " dimensions, or of different sizes, are no map");
  }
  StridedMap map;
  map.source_offset = source.offset;
  map.target_offset = target.offset;
  std::vector<Dim> dims;
  for (std::size_t d = 0; d < source.shape.size(); ++d) {
    if (source.shape[d] == 0) {  // nothing goes anywhere
      map.source_end = map.source_offset;
      map.target_end = map.target_offset;
      return map;
    }
    if (source.shape[d] == 1) continue;
    dims.push_back({source.shape[d], source.strides[d], target.strides[d]});
  }
  map.source_end = end_of(source.offset, dims, &Dim::source_stride);
  map.target_end = end_of(target.offset, dims, &Dim::target_stride);
  DRIFTLESS_RETURN_IF_ERROR(
      check_side("source", dims, &Dim::source_stride, map.source_end, source_units));
  DRIFTLESS_RETURN_IF_ERROR(
      check_side("target", dims, &Dim::target_stride, map.target_end, target_units));
  std::sort(dims.begin(), dims.end(),
            [](const Dim& a, const Dim& b) { return a.source_stride > b.source_stride; });
  dims = joined(dims);
  if (dims.size() > kMaxDims) {
    return error(StatusCode::kInvalidArgument, "a map of ", dims.size(),
                 " dimensions that cannot be joined; at most ", kMaxDims, " are possible");
  }
  map.dims = static_cast<std::uint32_t>(dims.size());
  std::copy(dims.begin(), dims.end(), map.dim);
  return map;
}

bool covers_once(std::span<const StridedMap* const> maps, std::uint64_t units) {
  std::uint64_t sum = 0;
  bool solid = true;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges;
  for (const StridedMap* map : maps) {
    if (map->units() == 0) continue;
    sum += map->units();
    solid = solid && map->solid();
    ranges.emplace_back(map->source_offset, map->source_end);
  }
  if (sum != units) return false;
  if (solid) {
    std::sort(ranges.begin(), ranges.end());
    std::uint64_t next = 0;
    for (const auto& [begin, end] : ranges) {
      if (begin != next) return false;
      next = end;
    }
    return next == units;
  }
  std::vector<bool> seen(units);
  for (const StridedMap* map : maps) {
    for (std::uint64_t at = map->source_offset; at < map->source_end;) {
      const StridedMap::Run run = map->run_at(at);
      if (run.target != StridedMap::kOutside) {
        for (std::uint64_t unit = run.begin; unit < run.end; ++unit) {
          if (seen[unit]) return false;
          seen[unit] = true;
        }
      }
      at = run.end;
    }
  }
  return true;  // as many as there are, and none twice
}

bool targets_meet(const StridedMap& a, const StridedMap& b) {
  if (a.units() == 0 || b.units() == 0) return false;
  if (a.target_end <= b.target_offset || b.target_end <= a.target_offset) return false;
  // Columns of one matrix interleave without meeting: with the same outermost steps, it is the
  // stretch inside of each that counts.
  const auto widest = [](const StridedMap& map) {
    Dim found{1, 0, 0};
    for (std::uint32_t d = 0; d < map.dims; ++d) {
      if (map.dim[d].target_stride > found.target_stride) found = map.dim[d];
    }
    return found;
  };
  const Dim outer_a = widest(a), outer_b = widest(b);
  const std::uint64_t stride = outer_a.target_stride;
  if (stride <= 1 || stride != outer_b.target_stride) return true;
  const std::uint64_t inner_a = a.target_end - a.target_offset - (outer_a.size - 1) * stride;
  const std::uint64_t inner_b = b.target_end - b.target_offset - (outer_b.size - 1) * stride;
  const std::uint64_t at_a = a.target_offset % stride, at_b = b.target_offset % stride;
  if (at_a + inner_a > stride || at_b + inner_b > stride) return true;
  return at_a < at_b + inner_b && at_b < at_a + inner_a;
}

}  // namespace driftless
