// SPDX-License-Identifier: Apache-2.0
// Two passes: the one over both sides from diff.cu, which here writes directly into the slots, and
// a short one that adds the old values before the optimizer overwrites them.
#include <cstring>

#include "core/memory_kind.h"
#include "kernels/cuda/diff_sweep.cuh"

namespace driftless::cuda {
namespace {

static_assert(kTileBytes == CaptureBatch::kTileBytes);

// Divides the device's workspace, or the host's, which has only the tables.
Parts carve_capture(std::byte* begin, std::uint64_t tensors, std::uint64_t tiles, MemoryKind kind,
                    std::uint64_t* used = nullptr) {
  Carver carver(begin);
  Parts parts;
  parts.slots_for_all = true;
  parts.tensors = carver.take<DevTensor>(tensors);
  parts.tile_tensor = carver.take<std::uint32_t>(tiles);
  if (kind == MemoryKind::kDevice) {
    parts.cursor = carver.take<unsigned long long>(1);
    parts.tiles = carver.take<Tile>(tiles);
  }
  if (used != nullptr) *used = carver.used();
  return parts;
}

// A warp processes a tile.
template <unsigned W>
__global__ void __launch_bounds__(kWarps * 32)
    gather_old(Parts parts, std::uint32_t tiles, std::uint64_t max_changed, Unit<W>* old_values) {
  const std::uint32_t number = blockIdx.x * kWarps + threadIdx.x / 32;
  if (number >= tiles) return;
  const Tile tile = parts.tiles[number];
  if (tile.count == 0 || tile.base + tile.count > max_changed) return;
  const DevTensor tensor = parts.tensors[parts.tile_tensor[number]];
  const auto* const units = reinterpret_cast<const Unit<W>*>(tensor.old_dev) +
                            std::uint64_t{number - tensor.first_tile} * (kTileBytes / W);
  const std::uint16_t* const offsets = parts.slot_offsets + tile.base;
#pragma unroll 4
  for (std::uint32_t k = threadIdx.x % 32; k < tile.count; k += 32) {
    old_values[tile.base + k] = units[offsets[k]];
  }
}

template <unsigned W>
Status queue_gather(const Parts& parts, std::uint32_t tiles, std::uint64_t max_changed,
                    std::byte* old_values, cudaStream_t stream) {
  gather_old<W><<<(tiles + kWarps - 1) / kWarps, kWarps * 32, 0, stream>>>(
      parts, tiles, max_changed, reinterpret_cast<Unit<W>*>(old_values));
  return check_launch("gather_old");
}

}  // namespace

WorkspaceSize CaptureBatch::workspace_size(std::span<const std::uint64_t> units,
                                           unsigned unit_bytes) {
  const std::uint64_t tiles = tiles_of(units, unit_bytes);
  WorkspaceSize size;
  carve_capture(nullptr, units.size(), tiles, MemoryKind::kDevice, &size.dev_bytes);
  carve_capture(nullptr, units.size(), tiles, MemoryKind::kHost, &size.host_bytes);
  return size;
}

Result<CaptureBatch> CaptureBatch::make(std::span<const std::uint64_t> units, unsigned unit_bytes,
                                        ValueCast cast, const Workspace& workspace, Stream stream) {
  const bool narrows = cast == ValueCast::kF32ToBF16 || cast == ValueCast::kF32ToF16;
  if (!valid_width(unit_bytes) || (cast != ValueCast::kNone && !(narrows && unit_bytes == 2))) {
    return error(StatusCode::kInvalidArgument, "changes of units of ", unit_bytes,
                 " bytes cannot be captured");
  }
  const std::uint64_t tiles = tiles_of(units, unit_bytes);
  if (tiles >= (std::uint64_t{1} << 31) || units.size() >= (std::uint64_t{1} << 31)) {
    return error(StatusCode::kInvalidArgument, "a capture of ", units.size(), " tensors in ", tiles,
                 " tiles is too large: cut it in two");
  }
  DRIFTLESS_RETURN_IF_ERROR(
      check_workspace(workspace, workspace_size(units, unit_bytes), "capturing on the device"));
  CaptureBatch batch;
  batch.tensors_ = static_cast<std::uint32_t>(units.size());
  batch.tiles_ = static_cast<std::uint32_t>(tiles);
  batch.unit_bytes_ = unit_bytes;
  batch.cast_ = cast;
  batch.dev_ = workspace.dev;
  batch.host_ = workspace.host;
  const Parts host = carve_capture(batch.host_, units.size(), tiles, MemoryKind::kHost);
  const Parts dev = carve_capture(batch.dev_, units.size(), tiles, MemoryKind::kDevice);
  fill_tables(units, unit_bytes, host);
  DRIFTLESS_RETURN_IF_ERROR(
      check(cudaMemcpyAsync(dev.tile_tensor, host.tile_tensor, tiles * sizeof(std::uint32_t),
                            cudaMemcpyHostToDevice, native(stream)),
            "placing the table of tiles"));
  return batch;
}

Status CaptureBatch::run(std::span<const Tensor> tensors, const Slots& slots, Stream stream) {
  if (tensors.size() != tensors_) {
    return error(StatusCode::kInvalidArgument, "the batch was made for ", tensors_, " tensors, ",
                 tensors.size(), " were given");
  }
  const Parts host = carve_capture(host_, tensors_, tiles_, MemoryKind::kHost);
  Parts dev = carve_capture(dev_, tensors_, tiles_, MemoryKind::kDevice);
  dev.slot_offsets = slots.offsets_dev;
  dev.slot_values = slots.values_dev;
  const cudaStream_t queue_on = native(stream);
  bool moved = false;  // most runs use the same memory as the one before
  for (std::uint32_t i = 0; i < tensors_; ++i) {
    DevTensor& entry = host.tensors[i];
    moved = moved || entry.old_dev != tensors[i].old_dev || entry.new_dev != tensors[i].new_dev;
    entry.old_dev = tensors[i].old_dev;
    entry.new_dev = tensors[i].new_dev;
  }
  if (moved) {
    DRIFTLESS_RETURN_IF_ERROR(
        check(cudaMemcpyAsync(dev.tensors, host.tensors, tensors_ * sizeof(DevTensor),
                              cudaMemcpyHostToDevice, queue_on),
              "placing the table of tensors"));
  }
  DRIFTLESS_RETURN_IF_ERROR(
      check(cudaMemsetAsync(dev.cursor, 0, sizeof(*dev.cursor), queue_on), "clearing a workspace"));
  if (tiles_ == 0) return {};
  DRIFTLESS_RETURN_IF_ERROR(
      queue_diff_tiles(dev, tiles_, unit_bytes_, cast_, slots.count, queue_on));
  const auto gather =
      by_width(unit_bytes_, queue_gather<1>, queue_gather<2>, queue_gather<4>, queue_gather<8>);
  return gather(dev, tiles_, slots.count, slots.old_values_dev, queue_on);
}

const std::uint64_t* CaptureBatch::changed_dev() const {
  static_assert(sizeof(unsigned long long) == sizeof(std::uint64_t));
  return reinterpret_cast<const std::uint64_t*>(
      carve_capture(dev_, tensors_, tiles_, MemoryKind::kDevice).cursor);
}

const CaptureBatch::Tile* CaptureBatch::tiles_dev() const {
  return carve_capture(dev_, tensors_, tiles_, MemoryKind::kDevice).tiles;
}

}  // namespace driftless::cuda
