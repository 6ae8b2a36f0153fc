// SPDX-License-Identifier: Apache-2.0
// Capturing on a GPU: new values and weights are compared in slices, what differs is kept there.
#include <algorithm>
#include <cstring>

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

Status DeviceCapture::fetch(
    const DeviceWork& work,
    const std::function<void(const DeltaView&, const std::byte* old_values)>& use) {
  if (kept_.empty()) return {};
  if (!reader_) {
    DRIFTLESS_ASSIGN_OR_RETURN(reader_, Uploader::make());
  }
  std::vector<std::byte> positions, values, old_values;
  std::vector<std::uint32_t> offsets;
  for (const Kept& kept : kept_) {
    positions.resize(kept.position_bytes);
    values.resize(kept.value_bytes);
    old_values.resize(kept.value_bytes);
    DRIFTLESS_RETURN_IF_ERROR(reader_->read(positions, kept.positions_dev, work.stream));
    DRIFTLESS_RETURN_IF_ERROR(reader_->read(values, kept.values_dev, work.stream));
    DRIFTLESS_RETURN_IF_ERROR(reader_->read(old_values, kept.old_values_dev, work.stream));
    const std::uint64_t piece_units = ChangeStore::kPieceBytes / kept.unit_bytes;
    for (const Kept::Entry& entry : kept.entries) {
      const std::byte* const own = positions.data() + entry.stream.position_begin;
      const auto at = [&](std::uint64_t k) {
        return position_at(own, entry.stream.position_bytes, k);
      };
      for (std::uint64_t k = 0; k < entry.stream.count;) {
        const std::uint64_t origin = at(k) / piece_units * piece_units;
        const std::uint64_t begin = (entry.stream.value_begin + k) * kept.unit_bytes;
        offsets.clear();
        for (; k < entry.stream.count && at(k) < origin + piece_units; ++k) {
          offsets.push_back(static_cast<std::uint32_t>(at(k) - origin));
        }
        use({entry.number, kept.unit_bytes, origin, offsets, values.data() + begin},
            old_values.data() + begin);
      }
    }
  }
  kept_.clear();
  kept_bytes_ = 0;
  found_.reset();
  host_.reset();
  return {};
}

}  // namespace driftless
