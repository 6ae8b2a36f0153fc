// SPDX-License-Identifier: Apache-2.0
// Capturing on a GPU: new values and weights are compared in slices, what differs is kept there.
#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <ranges>

#include "core/parallel.h"
#include "plugin/device/device_payload.h"
#include "plugin/publish/change_store.h"

namespace driftless {
namespace {

constexpr std::uint64_t kMostOf = 4;  // more than a quarter of a slice is not kept
constexpr cuda::PositionCoding kCoding = cuda::PositionCoding::kIndices;

std::uint64_t position_at(const std::byte* positions, std::uint32_t width, std::uint64_t k) {
  std::uint64_t position = 0;
  std::memcpy(&position, positions + k * width, width);
  return position;
}

}  // namespace

Result<std::vector<std::uint32_t>> DeviceCapture::capture(DeviceWork& work,
                                                          std::span<const TensorPair> pairs,
                                                          std::uint64_t limit_bytes) {
  limit_bytes_ = limit_bytes;
  many_.clear();
  widths_.clear();
  work.differ.drop();
  std::vector<TensorPair> sorted(pairs.begin(), pairs.end());
  std::ranges::stable_sort(
      sorted, {}, [](const TensorPair& pair) { return std::pair(pair.unit_bytes, pair.cast); });
  std::vector<SlicePiece> slice;
  std::uint64_t held = 0;  // units in the slice
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    const TensorPair& pair = sorted[i];
    const std::uint64_t most = kSliceBytes / pair.unit_bytes;
    for (std::uint64_t first = 0; first < pair.units;) {
      const std::uint64_t count = std::min(pair.units - first, most - held);
      slice.push_back({pair.tensor, first, count, pair.units > (std::uint64_t{1} << 31),
                       pair.old_data + first * pair.unit_bytes,
                       pair.new_data + first * source_bytes(pair.cast, pair.unit_bytes)});
      held += count;
      first += count;
      if (held < most) continue;
      DRIFTLESS_RETURN_IF_ERROR(start(work, slice, pair.unit_bytes, pair.cast));
      held = 0;
    }
    const bool last = i + 1 == sorted.size() || sorted[i + 1].unit_bytes != pair.unit_bytes ||
                      sorted[i + 1].cast != pair.cast;
    if (!last) continue;
    DRIFTLESS_RETURN_IF_ERROR(start(work, slice, pair.unit_bytes, pair.cast));
    held = 0;
  }
  while (work.differ.pending()) DRIFTLESS_RETURN_IF_ERROR(absorb(work));
  // The old values are about to be written over.
  DRIFTLESS_RETURN_IF_ERROR(work.stream.wait());
  return many_;
}

Status DeviceCapture::start(DeviceWork& work, std::vector<SlicePiece>& slice, unsigned unit_bytes,
                            ValueCast cast) {
  if (slice.empty()) return {};
  if (widths_.size() == 2) DRIFTLESS_RETURN_IF_ERROR(absorb(work));
  DRIFTLESS_RETURN_IF_ERROR(work.differ.start(std::exchange(slice, {}), unit_bytes, kCoding, cast));
  widths_.push_back(unit_bytes);
  return {};
}

Status DeviceCapture::absorb(DeviceWork& work) {
  const unsigned width = widths_.front();
  widths_.erase(widths_.begin());
  DRIFTLESS_ASSIGN_OR_RETURN(const SliceResults results, work.differ.take(kMostOf));
  std::uint64_t units = 0;
  for (const SlicePiece& piece : results.pieces) units += piece.units;
  const std::uint64_t bytes = results.changed * (sizeof(std::uint32_t) + 2 * std::uint64_t{width});
  if (results.changed > std::max<std::uint64_t>(units / kMostOf, units / 16 + 1024) ||
      kept_bytes_ + bytes > limit_bytes_) {
    for (const SlicePiece& piece : results.pieces) many_.push_back(piece.number);
  } else if (results.changed > 0) {
    DRIFTLESS_RETURN_IF_ERROR(keep(work, results, width));
    kept_bytes_ += bytes;
  }
  return work.differ.release();
}

Status DeviceCapture::keep(DeviceWork& work, const SliceResults& results, unsigned unit_bytes) {
  Kept kept;
  kept.unit_bytes = unit_bytes;
  kept.position_bytes = results.position_bytes;
  kept.value_bytes = results.changed * unit_bytes;
  DRIFTLESS_ASSIGN_OR_RETURN(kept.positions_dev, found_.take(kept.position_bytes));
  DRIFTLESS_ASSIGN_OR_RETURN(kept.values_dev, found_.take(kept.value_bytes));
  DRIFTLESS_ASSIGN_OR_RETURN(kept.old_values_dev, found_.take(kept.value_bytes));
  std::vector<cuda::Patch::Tensor> tensors;
  for (std::size_t i = 0; i < results.entries.size(); ++i) {
    const SlicePiece& piece = results.pieces[i];
    if (results.entries[i].count == 0) continue;
    kept.entries.push_back({piece.number, results.entries[i]});
    cuda::Patch::Tensor tensor;
    tensor.units = piece.first_unit + piece.units;
    tensor.entry = results.entries[i];
    // Positions count from the block's start, of which only the stretch need be there.
    tensor.data_dev = const_cast<std::byte*>(results.old_dev[i]) - piece.first_unit * unit_bytes;
    tensors.push_back(tensor);
  }
  DRIFTLESS_RETURN_IF_ERROR(
      work.stream.copy(kept.positions_dev, results.positions_dev, kept.position_bytes));
  DRIFTLESS_RETURN_IF_ERROR(
      work.stream.copy(kept.values_dev, results.values_dev, kept.value_bytes));
  DRIFTLESS_ASSIGN_OR_RETURN(
      const cuda::Patch patch,
      work.make_patch_in(found_, host_, tensors, unit_bytes, kCoding, kept.positions_dev));
  DRIFTLESS_RETURN_IF_ERROR(patch.gather(kept.old_values_dev, work.stream.get()));
  kept_.push_back(std::move(kept));
  return {};
}

// Slices that fit a few megabytes of pinned memory at a time.
Status DeviceCapture::fetch(
    const DeviceWork& work, unsigned threads,
    const std::function<void(const DeltaView&, const std::byte* old_values)>& use) {
  constexpr std::uint64_t kTogether = std::uint64_t{32} << 20;
  for (std::size_t begin = 0; begin < kept_.size();) {
    std::size_t end = begin;
    std::uint64_t bytes = 0;
    while (end < kept_.size() && (end == begin || bytes + kept_[end].room() <= kTogether)) {
      bytes += kept_[end++].room();
    }
    DRIFTLESS_RETURN_IF_ERROR(fetched_.reserve(bytes, MemoryKind::kHost));
    DRIFTLESS_RETURN_IF_ERROR(
        fetch_some(std::span(kept_).subspan(begin, end - begin), work, threads, use));
    begin = end;
  }
  kept_.clear();
  kept_bytes_ = 0;
  found_.reset();
  host_.reset();
  return {};
}

Status DeviceCapture::fetch_some(
    std::span<const Kept> some, const DeviceWork& work, unsigned threads,
    const std::function<void(const DeltaView&, const std::byte* old_values)>& use) {
  // Changes [begin, end) of an entry, which lie in one piece; in the order of the captures.
  struct Part {
    const Kept* kept;
    const cuda::StreamEntry* entry;
    const std::byte* positions;  // of the entry
    const std::byte* values;     // of the slice
    const std::byte* old_values;
    std::uint64_t begin, end;
  };
  std::map<std::pair<std::uint32_t, std::uint64_t>, std::vector<Part>> pieces;  // number, origin
  std::byte* at = fetched_.data();
  const auto bring = [&](const std::byte* from, std::uint64_t bytes) {
    std::byte* const to = at;
    at += device_aligned(bytes);
    return std::pair(to, work.stream.copy(to, from, bytes));
  };
  std::vector<std::array<const std::byte*, 3>> places;
  for (const Kept& kept : some) {
    const auto [positions, first] = bring(kept.positions_dev, kept.position_bytes);
    const auto [values, second] = bring(kept.values_dev, kept.value_bytes);
    const auto [old_values, third] = bring(kept.old_values_dev, kept.value_bytes);
    DRIFTLESS_RETURN_IF_ERROR(first);
    DRIFTLESS_RETURN_IF_ERROR(second);
    DRIFTLESS_RETURN_IF_ERROR(third);
    places.push_back({positions, values, old_values});
  }
  DRIFTLESS_RETURN_IF_ERROR(work.stream.wait());
  for (std::size_t i = 0; i < some.size(); ++i) {
    const std::uint64_t piece_units = ChangeStore::kPieceBytes / some[i].unit_bytes;
    for (const Kept::Entry& entry : some[i].entries) {
      const std::byte* const own = places[i][0] + entry.stream.position_begin;
      const auto position = [&](std::uint64_t k) {
        return position_at(own, entry.stream.position_bytes, k);
      };
      for (std::uint64_t begin = 0; begin < entry.stream.count;) {
        const std::uint64_t origin = position(begin) / piece_units * piece_units;
        const auto rest = std::views::iota(begin, entry.stream.count);
        const std::uint64_t end = *std::ranges::partition_point(
            rest, [&](std::uint64_t k) { return position(k) < origin + piece_units; });
        pieces[{entry.number, origin}].push_back(
            {&some[i], &entry.stream, own, places[i][1], places[i][2], begin, end});
        begin = end;
      }
    }
  }
  std::vector<const std::pair<const std::pair<std::uint32_t, std::uint64_t>, std::vector<Part>>*>
      tasks;
  for (const auto& piece : pieces) tasks.push_back(&piece);
  return parallel_for(tasks.size(), threads, [&](std::size_t task, unsigned) -> Status {
    const auto& [where, parts] = *tasks[task];
    std::vector<std::uint32_t> offsets;
    for (const Part& part : parts) {
      const unsigned width = part.kept->unit_bytes;
      offsets.resize(part.end - part.begin);
      for (std::uint64_t k = 0; k < offsets.size(); ++k) {
        offsets[k] = static_cast<std::uint32_t>(
            position_at(part.positions, part.entry->position_bytes, part.begin + k) - where.second);
      }
      const std::uint64_t first = (part.entry->value_begin + part.begin) * width;
      use({where.first, width, where.second, offsets, part.values + first},
          part.old_values + first);
    }
    return {};
  });
}

}  // namespace driftless
