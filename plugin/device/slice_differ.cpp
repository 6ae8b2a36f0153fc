// SPDX-License-Identifier: Apache-2.0
#include "plugin/device/slice_differ.h"

namespace driftless {
namespace {

// Room that usually suffices; a slice with more changes is compared again.
std::uint64_t first_room(std::uint64_t units) { return units / 16 + 1024; }

std::uint64_t units_of(std::span<const SlicePiece> pieces) {
  std::uint64_t units = 0;
  for (const SlicePiece& piece : pieces) units += piece.units;
  return units;
}

}  // namespace

Status SliceDiffer::open(const DeviceStream& work) {
  work_ = &work;
  DRIFTLESS_ASSIGN_OR_RETURN(copies_, DeviceStream::make());
  DRIFTLESS_ASSIGN_OR_RETURN(copied_, DeviceEvent::make());
  for (Lane& lane : lanes_) {
    DRIFTLESS_ASSIGN_OR_RETURN(lane.done, DeviceEvent::make());
    DRIFTLESS_ASSIGN_OR_RETURN(lane.read, DeviceEvent::make());
  }
  return {};
}

// Copies units on the host to the device, and sets the device addresses of both sides.
Status SliceDiffer::stage(Lane& lane) {
  std::uint64_t bytes = 0;
  for (const SlicePiece& piece : lane.pieces) {
    const std::uint64_t piece_bytes = device_aligned(piece.units * lane.unit_bytes);
    bytes += (piece.old_kind == MemoryKind::kHost ? piece_bytes : 0) +
             (piece.new_kind == MemoryKind::kHost ? piece_bytes : 0);
  }
  if (bytes > lane.staged.size()) DRIFTLESS_RETURN_IF_ERROR(work_->wait());
  DRIFTLESS_RETURN_IF_ERROR(lane.staged.reserve(bytes, MemoryKind::kDevice));
  if (bytes != 0) DRIFTLESS_RETURN_IF_ERROR(lane.read.hold(copies_));
  std::byte* at = lane.staged.data();
  const auto bring = [&](const std::byte* data, MemoryKind kind,
                         std::uint64_t piece_bytes) -> Result<const std::byte*> {
    if (kind == MemoryKind::kDevice) return data;
    std::byte* const to = at;
    at += device_aligned(piece_bytes);
    DRIFTLESS_RETURN_IF_ERROR(copies_.copy(to, data, piece_bytes));
    return to;
  };
  lane.tensors.clear();
  lane.old_dev.clear();
  for (const SlicePiece& piece : lane.pieces) {
    const std::uint64_t piece_bytes = piece.units * lane.unit_bytes;
    DRIFTLESS_ASSIGN_OR_RETURN(const std::byte* const before,
                               bring(piece.old_data, piece.old_kind, piece_bytes));
    DRIFTLESS_ASSIGN_OR_RETURN(const std::byte* const after,
                               bring(piece.new_data, piece.new_kind, piece_bytes));
    lane.tensors.push_back({before, after, piece.first_unit, piece.huge});
    lane.old_dev.push_back(before);
  }
  if (bytes == 0) return {};
  DRIFTLESS_RETURN_IF_ERROR(copied_.record(copies_));
  return copied_.hold(*work_);
}

Status SliceDiffer::compare(Lane& lane, std::uint64_t max_changed) {
  std::vector<std::uint64_t> units;
  bool huge = false;
  for (const SlicePiece& piece : lane.pieces) {
    units.push_back(piece.units);
    huge = huge || piece.huge;
  }
  const cuda::WorkspaceSize size =
      cuda::DiffBatch::workspace_size(units, lane.unit_bytes, max_changed);
  // Work may still read this memory: it grows in place, or freeing it waits for the device.
  DRIFTLESS_RETURN_IF_ERROR(lane.work.dev.reserve(size.dev_bytes, MemoryKind::kDevice));
  DRIFTLESS_RETURN_IF_ERROR(lane.work.host.reserve(size.host_bytes, MemoryKind::kHost));
  DRIFTLESS_ASSIGN_OR_RETURN(lane.batch, cuda::DiffBatch::make(units, lane.unit_bytes, max_changed,
                                                               lane.work.get(), work_->get()));
  DRIFTLESS_RETURN_IF_ERROR(
      lane.positions.reserve(lane.batch->max_position_bytes(huge), MemoryKind::kDevice));
  DRIFTLESS_RETURN_IF_ERROR(
      lane.values.reserve(lane.batch->max_value_bytes(), MemoryKind::kDevice));
  DRIFTLESS_RETURN_IF_ERROR(lane.batch->run(lane.tensors, lane.coding, lane.positions.data(),
                                            lane.values.data(), work_->get()));
  return lane.done.record(*work_);
}

Status SliceDiffer::start(std::vector<SlicePiece> pieces, unsigned unit_bytes,
                          cuda::PositionCoding coding) {
  if (started_ - taken_ >= lanes_.size()) {
    return error(StatusCode::kInternal, "a third slice was started before the first was taken");
  }
  Lane& lane = lanes_[started_ % lanes_.size()];
  lane.pieces = std::move(pieces);
  lane.unit_bytes = unit_bytes;
  lane.coding = coding;
  DRIFTLESS_RETURN_IF_ERROR(stage(lane));
  DRIFTLESS_RETURN_IF_ERROR(compare(lane, first_room(units_of(lane.pieces))));
  ++started_;
  return {};
}

Result<SliceResults> SliceDiffer::take() {
  Lane& lane = lanes_[taken_ % lanes_.size()];
  ++taken_;
  DRIFTLESS_RETURN_IF_ERROR(lane.done.wait());
  const std::uint64_t units = units_of(lane.pieces);
  if (lane.batch->results().changed > first_room(units)) {
    DRIFTLESS_RETURN_IF_ERROR(work_->wait());  // its memory is about to change
    DRIFTLESS_RETURN_IF_ERROR(compare(lane, units));
    DRIFTLESS_RETURN_IF_ERROR(lane.done.wait());
  }
  return SliceResults{lane.batch->results(), lane.pieces, lane.old_dev, lane.positions.data(),
                      lane.values.data()};
}

Status SliceDiffer::release() { return lanes_[(taken_ - 1) % lanes_.size()].read.record(*work_); }

void SliceDiffer::drop() {
  while (pending()) {
    const Status waited = lanes_[taken_ % lanes_.size()].done.wait();
    ++taken_;
  }
}

std::uint64_t SliceDiffer::device_bytes() const {
  std::uint64_t bytes = 0;
  for (const Lane& lane : lanes_) {
    bytes += lane.staged.size() + lane.work.dev.size() + lane.positions.size() + lane.values.size();
  }
  return bytes;
}

}  // namespace driftless
