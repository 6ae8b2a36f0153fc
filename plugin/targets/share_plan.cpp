// SPDX-License-Identifier: Apache-2.0
// plan_shares(): chooses the maps that count in a tensor's share, sums their units, and finds the
// tensors that cannot be read back.
#include <algorithm>

#include "core/parallel.h"
#include "plugin/targets/weight_sums.h"

namespace driftless {
namespace {

struct UnitRange {
  std::uint64_t begin = 0, end = 0;
};

// Calls use() for each range of units that the map has, ascending; adjoining ranges are merged.
template <typename Use>
void each_range(const StridedMap& map, const Use& use) {
  UnitRange open;
  for (std::uint64_t at = map.source_offset; at < map.source_end;) {
    const StridedMap::Run run = map.run_at(at);
    if (run.target != StridedMap::kOutside) {
      if (run.begin != open.end) {
        if (open.begin != open.end) use(open);
        open.begin = run.begin;
      }
      open.end = run.end;
    }
    at = run.end;
  }
  if (open.begin != open.end) use(open);
}

// Takes the maps in this order, except for those with a unit of a map that is already taken.
std::vector<std::uint32_t> apart_in_order(const MappedWeights& weights,
                                          const std::vector<std::uint32_t>& order) {
  std::vector<std::uint32_t> found;
  for (const std::uint32_t m : order) {
    const bool fits = std::all_of(found.begin(), found.end(), [&](std::uint32_t other) {
      return !meet(weights.maps[m].map, weights.maps[other].map, MapSide::kSource);
    });
    if (fits) found.push_back(m);
  }
  return found;
}

// Chooses the maps that count in the tensor's share; no two of them have a unit in common. The
// others are tied copies or replicas. Two orders are tried, the loader's and the largest first, and
// the choice with more units is used: if copies are cut differently, one order may leave out more
// units.
std::vector<std::uint32_t> counted_maps(const MappedWeights& weights, std::uint32_t tensor) {
  const MappedWeights::Tensor& mapped = weights.tensors[tensor];
  std::vector<std::uint32_t> readable;
  for (std::uint32_t m = mapped.first_map; m < mapped.first_map + mapped.maps; ++m) {
    if (mapped.complete ? weights.counted[m] : reversible(weights.maps[m].cast)) {
      readable.push_back(m);
    }
  }
  if (mapped.complete) return readable;
  const auto units = [&](const std::vector<std::uint32_t>& maps) {
    std::uint64_t sum = 0;
    for (const std::uint32_t m : maps) sum += weights.maps[m].map.units();
    return sum;
  };
  const std::vector<std::uint32_t> as_written = apart_in_order(weights, readable);
  std::stable_sort(readable.begin(), readable.end(), [&](std::uint32_t a, std::uint32_t b) {
    return weights.maps[a].map.units() > weights.maps[b].map.units();
  });
  const std::vector<std::uint32_t> largest_first = apart_in_order(weights, readable);
  return units(largest_first) > units(as_written) ? largest_first : as_written;
}

Hash128 region_of(const MappedWeights& weights, std::span<const std::uint32_t> maps) {
  std::vector<UnitRange> ranges;
  for (const std::uint32_t m : maps) {
    each_range(weights.maps[m].map, [&](const UnitRange& range) { ranges.push_back(range); });
  }
  std::sort(ranges.begin(), ranges.end(),
            [](const UnitRange& a, const UnitRange& b) { return a.begin < b.begin; });
  std::vector<UnitRange> joined;
  for (const UnitRange& range : ranges) {
    if (!joined.empty() && joined.back().end == range.begin) {
      joined.back().end = range.end;
    } else {
      joined.push_back(range);
    }
  }
  return xxh3_128(std::as_bytes(std::span(joined)));
}

void note_unproven(const MappedWeights& weights, std::uint32_t tensor,
                   std::vector<UnprovenTensor>& unproven) {
  const MappedWeights::Tensor& mapped = weights.tensors[tensor];
  if (!mapped.why_refused.empty()) unproven.push_back({tensor, mapped.why_refused});
  if (mapped.external) unproven.push_back({tensor, "it is written by the engine's loader"});
  for (std::uint32_t m = mapped.first_map; m < mapped.first_map + mapped.maps; ++m) {
    if (reversible(weights.maps[m].cast)) continue;
    unproven.push_back({tensor, concat("parameter '", weights.maps[m].parameter,
                                       "' holds it in a type that loses bits")});
  }
}

}  // namespace

Status plan_shares(MappedWeights& weights) {
  const std::size_t count = weights.tensors.size();
  std::vector<std::vector<std::uint32_t>> counted(count);
  std::vector<TensorShare> shares(count);
  DRIFTLESS_RETURN_IF_ERROR(
      parallel_for(count, weights.threads, [&](std::size_t i, unsigned) -> Status {
        const auto tensor = static_cast<std::uint32_t>(i);
        counted[i] = counted_maps(weights, tensor);
        for (const std::uint32_t m : counted[i]) shares[i].units += weights.maps[m].map.units();
        shares[i].tensor = tensor;
        if (shares[i].units > 0) shares[i].region = region_of(weights, counted[i]);
        return {};
      }));
  weights.in_share.assign(weights.maps.size(), false);
  for (std::uint32_t tensor = 0; tensor < count; ++tensor) {
    for (const std::uint32_t m : counted[tensor]) weights.in_share[m] = true;
    weights.tensors[tensor].share = weights.no_shares.tensors.size();
    if (shares[tensor].units > 0) weights.no_shares.tensors.push_back(shares[tensor]);
    note_unproven(weights, tensor, weights.no_shares.unproven);
  }
  return {};
}

}  // namespace driftless
