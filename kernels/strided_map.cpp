// SPDX-License-Identifier: Apache-2.0
#include "kernels/strided_map.h"

#include <algorithm>
#include <queue>

namespace driftless {
namespace {

using Dim = StridedMap::Dim;

// One past the last unit that the strides reach from `offset`; kOutside if that overflows.
std::uint64_t end_of(std::uint64_t offset, std::span<const Dim> dims, std::uint64_t Dim::* stride) {
  constexpr std::uint64_t kMost = std::uint64_t{1} << 62;
  unsigned __int128 last = offset;
  for (const Dim& dim : dims) last += static_cast<unsigned __int128>(dim.size - 1) * (dim.*stride);
  return last >= kMost ? StridedMap::kOutside : static_cast<std::uint64_t>(last) + 1;
}

// With descending strides, each step must be longer than everything inside it.
bool distinct(std::vector<Dim> dims, std::uint64_t Dim::* stride) {
  std::sort(dims.begin(), dims.end(),
            [&](const Dim& a, const Dim& b) { return a.*stride > b.*stride; });
  std::uint64_t inner = 0;  // the last offset that inner dimensions reach
  for (auto dim = dims.rbegin(); dim != dims.rend(); ++dim) {
    if ((*dim).*stride <= inner) return false;
    inner += (dim->size - 1) * ((*dim).*stride);
  }
  return true;
}

// Joins two dimensions if a step of the outer one is as long as the whole inner one.
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

using Meeting = std::pair<std::size_t, std::size_t>;

// The bytes of one map as ascending runs. Dimensions whose units adjoin are part of the run.
class Runs {
 public:
  Runs(const PlacedMap& placed, MapSide side, std::size_t number)
      : number_(number), run_bytes_(placed.unit_bytes) {
    const StridedMap& map = *placed.map;
    const bool source = side == MapSide::kSource;
    const auto stride = source ? &Dim::source_stride : &Dim::target_stride;
    begin_ = placed.address +
             (source ? map.source_offset : map.target_offset) * std::uint64_t{placed.unit_bytes};
    std::vector<Dim> dims(map.dim, map.dim + map.dims);
    std::sort(dims.begin(), dims.end(),
              [&](const Dim& a, const Dim& b) { return a.*stride < b.*stride; });
    for (const Dim& dim : dims) {
      const std::uint64_t step = dim.*stride * placed.unit_bytes;
      if (repeats_.empty() && step == run_bytes_) {
        run_bytes_ *= dim.size;
      } else if (!repeats_.empty() && step == repeats_.back().bytes * repeats_.back().count) {
        repeats_.back().count *= dim.size;
      } else {
        repeats_.push_back({step, dim.size, 0});
      }
    }
    measure();
  }
  [[nodiscard]] std::size_t number() const { return number_; }
  [[nodiscard]] std::uint64_t begin() const { return begin_; }  // of the current run
  [[nodiscard]] std::uint64_t run_end() const { return begin_ + run_bytes_; }
  [[nodiscard]] std::uint64_t end() const { return end_; }  // of the last run

  // Advances to the next run, if there is one.
  [[nodiscard]] bool next() {
    for (Repeat& repeat : repeats_) {
      begin_ += repeat.bytes;
      if (++repeat.at < repeat.count) return true;
      begin_ -= repeat.bytes * repeat.count;
      repeat.at = 0;
    }
    return false;
  }
  // The outermost step, or 0; and the end of the first group of runs, which this step repeats.
  [[nodiscard]] std::uint64_t period() const {
    return repeats_.empty() ? 0 : repeats_.back().bytes;
  }
  [[nodiscard]] std::uint64_t first_end() const {
    return end_ - (repeats_.back().count - 1) * repeats_.back().bytes;
  }
  void keep_first() {
    repeats_.pop_back();
    measure();
  }

 private:
  struct Repeat {
    std::uint64_t bytes, count, at;
  };
  void measure() {
    end_ = run_end();
    for (const Repeat& repeat : repeats_) end_ += (repeat.count - 1) * repeat.bytes;
  }
  std::size_t number_;
  std::uint64_t begin_ = 0, end_ = 0;
  std::uint64_t run_bytes_;
  std::vector<Repeat> repeats_;  // ascending
};

// For columns of one matrix: if all maps repeat with the same step, and their first runs fit into
// one step, only the first runs need to be compared.
bool keep_first(std::span<Runs> cluster) {
  const std::uint64_t period = cluster.front().period();
  std::uint64_t end = 0;
  for (const Runs& runs : cluster) {
    if (period == 0 || runs.period() != period) return false;
    end = std::max(end, runs.first_end());
  }
  if (end - cluster.front().begin() > period) return false;
  for (Runs& runs : cluster) runs.keep_first();
  return true;
}

// Compares all runs of all maps, ascending.
std::optional<Meeting> walk(std::span<Runs> cluster) {
  const auto later = [](const Runs* a, const Runs* b) { return a->begin() > b->begin(); };
  std::priority_queue<Runs*, std::vector<Runs*>, decltype(later)> waiting(later);
  for (Runs& runs : cluster) waiting.push(&runs);
  const Runs* before = nullptr;
  for (std::uint64_t taken = 0; !waiting.empty();) {
    Runs* const runs = waiting.top();
    waiting.pop();
    if (runs->begin() < taken) return Meeting{before->number(), runs->number()};
    taken = runs->run_end();
    before = runs;
    const bool alone = waiting.empty() || runs->end() <= waiting.top()->begin();
    if (!alone && runs->next()) waiting.push(runs);
  }
  return std::nullopt;
}

// Compares the runs of maps whose ranges overlap.
std::optional<Meeting> find_in_ranges(std::span<Runs> all) {
  std::sort(all.begin(), all.end(),
            [](const Runs& a, const Runs& b) { return a.begin() < b.begin(); });
  for (std::size_t first = 0, last = 0; first < all.size(); first = last) {
    std::uint64_t end = all[first].end();
    for (last = first + 1; last < all.size() && all[last].begin() < end; ++last) {
      end = std::max(end, all[last].end());
    }
    const std::span<Runs> cluster = all.subspan(first, last - first);
    if (cluster.size() == 1) continue;
    const std::optional<Meeting> found =
        keep_first(cluster) ? find_in_ranges(cluster) : walk(cluster);
    if (found) return found;
  }
  return std::nullopt;
}

}  // namespace

Result<StridedMap> StridedMap::make(const StridedView& source, std::uint64_t source_units,
                                    const StridedView& target, std::uint64_t target_units) {
  if (source.shape != target.shape || source.strides.size() != source.shape.size() ||
      target.strides.size() != target.shape.size()) {
    return error(StatusCode::kInvalidArgument, "a map of views of ", source.shape.size(), " and ",
                 target.shape.size(), " dimensions: expected the same shape on both sides");
  }
  StridedMap map;
  map.source_offset = source.offset;
  map.target_offset = target.offset;
  std::vector<Dim> dims;
  for (std::size_t d = 0; d < source.shape.size(); ++d) {
    if (source.shape[d] == 0) {  // an empty map
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

std::optional<Meeting> find_meeting(std::span<const PlacedMap> maps, MapSide side) {
  std::vector<Runs> all;
  for (std::size_t i = 0; i < maps.size(); ++i) {
    if (maps[i].map->units() > 0) all.emplace_back(maps[i], side, i);
  }
  return find_in_ranges(all);
}

bool meet(const StridedMap& a, const StridedMap& b, MapSide side) {
  const PlacedMap both[] = {{&a}, {&b}};
  return find_meeting(both, side).has_value();
}

bool covers_once(std::span<const StridedMap* const> maps, std::uint64_t units) {
  std::uint64_t sum = 0;
  std::vector<PlacedMap> placed;
  for (const StridedMap* map : maps) {
    sum += map->units();
    placed.push_back({map});
  }
  return sum == units && !find_meeting(placed, MapSide::kSource);
}

}  // namespace driftless
