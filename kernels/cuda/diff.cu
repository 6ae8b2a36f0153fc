// SPDX-License-Identifier: Apache-2.0
// One pass over both sides, then a short one over the changes.
//
// A warp processes a tile of 32 KiB of a tensor. It compares the tile with 16-byte loads, collects
// the offsets of the differing units in shared memory, and reserves slots for them from a cursor.
// Then it writes offsets and new values to the slots together: the tensors stream through the L2,
// which would evict small separate writes in pieces. It reads the values batch by batch, while the
// L2 still has them. Tiles reserve slots in any order, so none waits for a neighbour. A scan over
// the tiles' counts then gives the destination of each tile's results, and a second kernel moves
// them there and turns offsets into positions or gaps. A gap within a tile always fits into 16
// bits; only gaps between tiles may be wider.
#include <thrust/iterator/counting_iterator.h>
#include <thrust/iterator/transform_iterator.h>
#include <cub/device/device_scan.cuh>

#include <algorithm>
#include <cstring>

#include "core/memory_kind.h"
#include "kernels/cuda/diff_emit.cuh"
#include "kernels/cuda/diff_sweep.cuh"

namespace driftless::cuda {
namespace {

std::uint64_t scan_bytes(std::uint32_t tiles) {
  std::size_t bytes = 0;
  cub::DeviceScan::ExclusiveScan(
      nullptr, bytes,
      thrust::make_transform_iterator(thrust::counting_iterator<std::uint32_t>(0),
                                      ReadTile{nullptr}),
      static_cast<Before*>(nullptr), Join{}, Before{0, 0}, tiles);
  return bytes;
}

std::uint64_t results_bytes(const DiffShape& shape) {
  return sizeof(Summary) + shape.tensors * sizeof(StreamEntry);
}

// Divides the device's workspace, or the host's, which has only the tables and the results.
Parts carve(std::byte* begin, const DiffShape& shape, MemoryKind kind,
            std::uint64_t* used = nullptr) {
  Carver carver(begin);
  Parts parts;
  parts.tensors = carver.take<DevTensor>(shape.tensors);
  parts.tile_tensor = carver.take<std::uint32_t>(shape.tiles);
  std::byte* const results = carver.take<std::byte>(results_bytes(shape));
  parts.summary = reinterpret_cast<Summary*>(results);
  parts.entries = reinterpret_cast<StreamEntry*>(results + sizeof(Summary));
  if (kind == MemoryKind::kDevice) {
    parts.tiles = carver.take<Tile>(shape.tiles);
    parts.before = carver.take<Before>(shape.tiles);
    parts.wide = carver.take<std::uint32_t>(shape.tensors);
    parts.cursor = carver.take<unsigned long long>(1);
    parts.scan = carver.take<std::byte>(shape.scan_bytes);
    parts.slot_offsets = carver.take<std::uint16_t>(shape.max_changed);
    parts.slot_values = carver.take<std::byte>(shape.max_changed * shape.unit_bytes);
  }
  if (used != nullptr) *used = carver.used();
  return parts;
}

std::uint64_t tiles_of_one(std::uint64_t units, unsigned unit_bytes) {
  const std::uint64_t tile_units = kTileBytes / unit_bytes;
  return units / tile_units + (units % tile_units != 0 ? 1 : 0);
}

DiffShape shape_of(std::span<const std::uint64_t> units, unsigned unit_bytes,
                   std::uint64_t max_changed) {
  const auto tiles = static_cast<std::uint32_t>(tiles_of(units, unit_bytes));
  return {static_cast<std::uint32_t>(units.size()), tiles, unit_bytes, max_changed,
          scan_bytes(tiles)};
}

constexpr int kArchitectures[] = {__CUDA_ARCH_LIST__};
// Whether every compiled architecture can wait for a running kernel; the list ascends.
constexpr bool kCanBeEarly = kArchitectures[0] >= 900;

// Queues a kernel of diff_emit.cuh, which starts while the previous one ends; that hides the
// launch.
template <typename... Formal, typename... Given>
Status launch_next(const char* name, void (*kernel)(Formal...), unsigned grid, unsigned block,
                   cudaStream_t stream, Given... given) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = kCanBeEarly ? 1 : 0;
  return check(cudaLaunchKernelEx(&config, kernel, static_cast<Formal>(given)...), name);
}

template <unsigned W, ValueCast C = ValueCast::kNone>
Status queue_tiles(const Parts& parts, std::uint32_t tiles, std::uint64_t max_changed,
                   cudaStream_t stream) {
  constexpr int kShared = kWarps * sizeof(List<W>);
  DRIFTLESS_RETURN_IF_ERROR(check(
      cudaFuncSetAttribute(diff_tiles<W, C>, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared),
      "asking for shared memory"));
  diff_tiles<W, C>
      <<<(tiles + kWarps - 1) / kWarps, kWarps * 32, kShared, stream>>>(parts, tiles, max_changed);
  return check_launch("diff_tiles");
}

template <unsigned W>
Status queue(const Parts& parts, const DiffShape& shape, PositionCoding coding,
             std::byte* positions, std::byte* values, Summary* host_summary, cudaStream_t stream) {
  const std::uint32_t tensors = shape.tensors, tiles = shape.tiles;
  if (tiles != 0) {
    DRIFTLESS_RETURN_IF_ERROR(queue_tiles<W>(parts, tiles, shape.max_changed, stream));
    std::size_t bytes = shape.scan_bytes;
    DRIFTLESS_RETURN_IF_ERROR(
        check(cub::DeviceScan::ExclusiveScan(
                  parts.scan, bytes,
                  thrust::make_transform_iterator(thrust::counting_iterator<std::uint32_t>(0),
                                                  ReadTile{parts.tiles}),
                  parts.before, Join{}, Before{0, 0}, tiles, stream),
              "the scan over tiles"));
    if (coding == PositionCoding::kGaps) {
      DRIFTLESS_RETURN_IF_ERROR(
          launch_next("widen_gaps", widen_gaps<W>, (tiles + 255) / 256, 256, stream, parts, tiles));
    }
  }
  DRIFTLESS_RETURN_IF_ERROR(
      launch_next("make_table", make_table, 1, kTableThreads, stream, parts, tensors, tiles));
  if (tiles == 0) {
    return check(cudaMemcpyAsync(host_summary, parts.summary, results_bytes(shape),
                                 cudaMemcpyDeviceToHost, stream),
                 "fetching the results of a comparison");
  }
  const auto kernel = coding == PositionCoding::kGaps ? emit<W, true> : emit<W, false>;
  return launch_next("emit", kernel, (tiles + kEmitTiles - 1) / kEmitTiles + 1, kEmitWarps * 32,
                     stream, parts, tensors, tiles, shape.max_changed, positions, values,
                     reinterpret_cast<std::uint64_t*>(host_summary));
}

constexpr const char* kClear = "clearing a workspace";

}  // namespace

std::uint64_t tiles_of(std::span<const std::uint64_t> units, unsigned unit_bytes) {
  std::uint64_t tiles = 0;
  for (const std::uint64_t count : units) tiles += tiles_of_one(count, unit_bytes);
  return tiles;
}

void fill_tables(std::span<const std::uint64_t> units, unsigned unit_bytes, const Parts& host) {
  std::uint32_t tile = 0;
  for (std::uint32_t i = 0; i < units.size(); ++i) {
    const auto tiles = static_cast<std::uint32_t>(tiles_of_one(units[i], unit_bytes));
    host.tensors[i] = {nullptr, nullptr, units[i], 0, tile, 0};
    std::fill_n(host.tile_tensor + tile, tiles, i);
    tile += tiles;
  }
}

Status queue_diff_tiles(const Parts& parts, std::uint32_t tiles, unsigned unit_bytes,
                        ValueCast cast, std::uint64_t max_changed, cudaStream_t stream) {
  const auto queue =
      cast == ValueCast::kF32ToBF16 ? queue_tiles<2, ValueCast::kF32ToBF16>
      : cast == ValueCast::kF32ToF16
          ? queue_tiles<2, ValueCast::kF32ToF16>
          : by_width(unit_bytes, queue_tiles<1>, queue_tiles<2>, queue_tiles<4>, queue_tiles<8>);
  return queue(parts, tiles, max_changed, stream);
}

WorkspaceSize DiffBatch::workspace_size(std::span<const std::uint64_t> units, unsigned unit_bytes,
                                        std::uint64_t max_changed) {
  const DiffShape shape = shape_of(units, unit_bytes, max_changed);
  WorkspaceSize size;
  carve(nullptr, shape, MemoryKind::kDevice, &size.dev_bytes);
  carve(nullptr, shape, MemoryKind::kHost, &size.host_bytes);
  return size;
}

Result<DiffBatch> DiffBatch::make(std::span<const std::uint64_t> units, unsigned unit_bytes,
                                  std::uint64_t max_changed, const Workspace& workspace,
                                  Stream stream) {
  if (!valid_width(unit_bytes)) {
    return error(StatusCode::kInvalidArgument, "units of ", unit_bytes,
                 " bytes cannot be compared");
  }
  const std::uint64_t tiles = tiles_of(units, unit_bytes);
  if (tiles >= (std::uint64_t{1} << 31) || units.size() >= (std::uint64_t{1} << 31)) {
    return error(StatusCode::kInvalidArgument, "a batch of ", units.size(), " tensors in ", tiles,
                 " tiles is too large: cut it in two");
  }
  DRIFTLESS_RETURN_IF_ERROR(check_workspace(
      workspace, workspace_size(units, unit_bytes, max_changed), "comparing on the device"));
  DiffBatch batch;
  batch.shape_ = shape_of(units, unit_bytes, max_changed);
  batch.dev_ = workspace.dev;
  batch.host_ = workspace.host;
  const Parts host = carve(batch.host_, batch.shape_, MemoryKind::kHost);
  fill_tables(units, unit_bytes, host);
  *host.summary = {};
  const Parts dev = carve(batch.dev_, batch.shape_, MemoryKind::kDevice);
  DRIFTLESS_RETURN_IF_ERROR(
      check(cudaMemcpyAsync(dev.tile_tensor, host.tile_tensor, tiles * sizeof(std::uint32_t),
                            cudaMemcpyHostToDevice, native(stream)),
            "placing the table of tiles"));
  DRIFTLESS_RETURN_IF_ERROR(check(
      cudaMemsetAsync(dev.wide, 0, batch.shape_.tensors * sizeof(std::uint32_t), native(stream)),
      kClear));
  DRIFTLESS_RETURN_IF_ERROR(
      check(cudaMemsetAsync(dev.cursor, 0, sizeof(*dev.cursor), native(stream)), kClear));
  return batch;
}

Status DiffBatch::run(std::span<const Tensor> tensors, PositionCoding coding,
                      std::byte* positions_dev, std::byte* values_dev, Stream stream) {
  if (tensors.size() != shape_.tensors) {
    return error(StatusCode::kInvalidArgument, "the batch was made for ", shape_.tensors,
                 " tensors, ", tensors.size(), " were given");
  }
  const Parts host = carve(host_, shape_, MemoryKind::kHost);
  const Parts dev = carve(dev_, shape_, MemoryKind::kDevice);
  bool moved = false;  // most runs use the same memory as the one before
  for (std::uint32_t i = 0; i < shape_.tensors; ++i) {
    DevTensor like = host.tensors[i];
    like.old_dev = tensors[i].old_dev;
    like.new_dev = tensors[i].new_dev;
    const bool gaps = coding == PositionCoding::kGaps;
    like.origin = tensors[i].origin;
    like.position_bytes = gaps ? 2 : tensors[i].huge ? 8 : 4;
    moved = moved || std::memcmp(&like, &host.tensors[i], sizeof(like)) != 0;
    host.tensors[i] = like;
  }
  const cudaStream_t queue_on = native(stream);
  if (moved) {
    DRIFTLESS_RETURN_IF_ERROR(
        check(cudaMemcpyAsync(dev.tensors, host.tensors, shape_.tensors * sizeof(DevTensor),
                              cudaMemcpyHostToDevice, queue_on),
              "placing the table of tensors"));
  }
  const auto run = by_width(shape_.unit_bytes, queue<1>, queue<2>, queue<4>, queue<8>);
  return run(dev, shape_, coding, positions_dev, values_dev, host.summary, queue_on);
}

DiffBatch::Results DiffBatch::results() const {
  const Parts host = carve(host_, shape_, MemoryKind::kHost);
  return {host.summary->changed, host.summary->position_bytes, {host.entries, shape_.tensors}};
}

}  // namespace driftless::cuda
