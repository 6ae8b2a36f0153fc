// SPDX-License-Identifier: Apache-2.0
#include "plugin/device/gpu_context.h"

#include <cstring>

namespace driftless {
namespace {

constexpr std::uint64_t kValueAlignment = 8;
// Of load_patch_kernels(): a unit, its old and its new value, and whether it differs.
constexpr std::uint64_t kSlots = 4, kSlotBytes = 256;

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

// Pieces are small: they are put together first, and travel in large copies.
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
  return part;
}

Status load_patch_kernels(const DeviceStream& stream) {
  cuda::StridedPatch::Part part;
  part.map = StridedMap::whole(1);
  part.count = 1;
  const cuda::WorkspaceSize size = cuda::StridedPatch::workspace_size(std::span(&part, 1));
  DRIFTLESS_ASSIGN_OR_RETURN(const DeviceWorkspace table, DeviceWorkspace::make(size));
  DRIFTLESS_ASSIGN_OR_RETURN(const DeviceBuffer units, DeviceBuffer::make(kSlots * kSlotBytes));
  const auto slot = [&](std::size_t number) { return units.data() + number * kSlotBytes; };
  part.data_dev = slot(0);
  for (const unsigned width : {1U, 2U, 4U, 8U}) {
    DRIFTLESS_RETURN_IF_ERROR(cuda::fill_units(slot(0), 1, width, 0, stream.get()));
    DRIFTLESS_RETURN_IF_ERROR(stream.clear(slot(1), 2 * kSlotBytes));
    DRIFTLESS_ASSIGN_OR_RETURN(
        const cuda::StridedPatch patch,
        cuda::StridedPatch::make(std::span(&part, 1), width, nullptr, table.get(), stream.get()));
    DRIFTLESS_RETURN_IF_ERROR(patch.gather_strided(slot(1), stream.get()));
    DRIFTLESS_RETURN_IF_ERROR(patch.exchange_strided(
        slot(2), slot(1), reinterpret_cast<std::uint32_t*>(slot(3)), stream.get()));
    DRIFTLESS_RETURN_IF_ERROR(patch.scatter_strided(slot(1), true, stream.get()));
    DRIFTLESS_RETURN_IF_ERROR(stream.wait());  // the table is used again
  }
  return {};
}

}  // namespace driftless
