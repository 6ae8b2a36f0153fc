// SPDX-License-Identifier: Apache-2.0
#include "plugin/device/gpu_context.h"

#include <cstring>

namespace driftless {
namespace {

constexpr std::uint64_t kValueAlignment = 8;
// For load_patch_kernels(): a unit, its old value, its new value, a result, and its position.
constexpr std::uint64_t kSlots = 5, kSlotBytes = 256;

}  // namespace

std::size_t PiecePlaces::add(const DeltaPiece& piece, unsigned value_bytes) {
  places_.push_back({&piece, value_bytes, offset_entries_, value_bytes_});
  offset_entries_ += piece.count;
  const std::uint64_t bytes = std::uint64_t{piece.count} * value_bytes;
  value_bytes_ += (bytes + kValueAlignment - 1) / kValueAlignment * kValueAlignment;
  return places_.size() - 1;
}

void PiecePlaces::clear() {
  places_.clear();
  offset_entries_ = value_bytes_ = 0;
}

// Pieces are small, so they are packed first and copied in large blocks.
Status PiecePlaces::upload(std::byte* offsets_dev, std::byte* values_dev, Uploader& uploader,
                           const DeviceStream& stream) const {
  std::vector<std::byte> together(offset_bytes());
  for (const Place& each : places_) {
    std::memcpy(together.data() + each.offset_begin * sizeof(std::uint32_t), each.piece->offsets,
                std::size_t{each.piece->count} * sizeof(std::uint32_t));
  }
  DRIFTLESS_RETURN_IF_ERROR(uploader.copy(offsets_dev, together, stream));
  together.assign(value_bytes_, std::byte{0});
  for (const Place& each : places_) {
    std::memcpy(together.data() + each.value_begin, each.piece->values,
                std::size_t{each.piece->count} * each.value_bytes);
  }
  return uploader.copy(values_dev, together, stream);
}

cuda::StridedPatch::Part PiecePlaces::part(std::size_t number, const ChangePart& found,
                                           std::uint64_t old_begin) const {
  const Place& place = places_[number];
  cuda::StridedPatch::Part part;
  part.map = found.map->map;
  part.data_dev = found.map->data;
  part.cast = found.map->cast;
  part.origin = place.piece->origin;
  part.count = found.count;
  part.offset_begin = place.offset_begin + found.begin;
  part.value_begin = place.value_begin + std::uint64_t{found.begin} * place.value_bytes;
  part.old_begin = old_begin;
  if (found.key != nullptr) part.key = *found.key;
  return part;
}

namespace {

// Runs every operation of a patch of one unit; `slots` has kSlots slots.
Status use_patch(const cuda::StridedPatch& patch, std::byte* slots, const DeviceStream& stream) {
  const auto slot = [&](std::size_t number) { return slots + number * kSlotBytes; };
  DRIFTLESS_RETURN_IF_ERROR(patch.gather_strided(slot(1), stream.get()));
  DRIFTLESS_RETURN_IF_ERROR(patch.digest_changes(
      slot(1), slot(2), reinterpret_cast<std::uint64_t*>(slot(3)), stream.get()));
  DRIFTLESS_RETURN_IF_ERROR(patch.exchange_strided(
      slot(2), slot(1), reinterpret_cast<std::uint32_t*>(slot(3)), stream.get()));
  return patch.scatter_strided(slot(1), true, stream.get());
}

}  // namespace

Status load_patch_kernels(const DeviceStream& stream) {
  cuda::StridedPatch::Part part;
  part.map = StridedMap::whole(1);
  part.count = 1;
  cuda::Patch::Tensor tensor;  // one change, at position 0
  tensor.units = 1;
  tensor.entry.count = 1;
  tensor.entry.position_bytes = 2;
  const std::span parts(&part, 1);
  const std::span tensors(&tensor, 1);
  DRIFTLESS_ASSIGN_OR_RETURN(
      const DeviceWorkspace table,
      DeviceWorkspace::make(cuda::StridedPatch::workspace_size(parts, tensors)));
  DRIFTLESS_ASSIGN_OR_RETURN(const DeviceBuffer units, DeviceBuffer::make(kSlots * kSlotBytes));
  part.data_dev = units.data();
  for (const unsigned width : {1U, 2U, 4U, 8U}) {
    DRIFTLESS_RETURN_IF_ERROR(cuda::fill_units(units.data(), 1, width, 0, stream.get()));
    DRIFTLESS_RETURN_IF_ERROR(stream.clear(units.data() + kSlotBytes, (kSlots - 1) * kSlotBytes));
    DRIFTLESS_ASSIGN_OR_RETURN(
        cuda::StridedPatch patch,
        cuda::StridedPatch::make(parts, width, nullptr, table.get(), stream.get()));
    DRIFTLESS_RETURN_IF_ERROR(use_patch(patch, units.data(), stream));
    for (const auto coding : {cuda::PositionCoding::kIndices, cuda::PositionCoding::kGaps}) {
      DRIFTLESS_RETURN_IF_ERROR(stream.wait());  // the table is reused
      const cuda::StridedPatch::Streams streams{tensors, coding, units.data() + 4 * kSlotBytes};
      DRIFTLESS_ASSIGN_OR_RETURN(
          patch, cuda::StridedPatch::make(parts, width, streams, table.get(), stream.get()));
      auto* const ends = reinterpret_cast<std::uint64_t*>(units.data() + 3 * kSlotBytes);
      DRIFTLESS_RETURN_IF_ERROR(patch.positions()->find_ends(ends, stream.get()));
      DRIFTLESS_RETURN_IF_ERROR(use_patch(patch, units.data(), stream));
    }
    DRIFTLESS_RETURN_IF_ERROR(stream.wait());
  }
  return {};
}

}  // namespace driftless
