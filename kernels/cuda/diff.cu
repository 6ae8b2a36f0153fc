// SPDX-License-Identifier: Apache-2.0
// One pass over both sides, then a short one over what was found.
//
// A warp takes a tile of 32 KiB of a tensor: compares it with 16-byte loads, collects the offsets
// of the differing units in shared memory, takes room for them from a cursor, and writes offsets
// and new values there, all at once: what trickles out is evicted from the L2 in pieces, because
// the tensors run through it. Values are picked up batch by batch, as long as the L2 has them.
// Tiles get their room in any order, so nobody waits for a neighbour. A scan over the tiles' counts
// then says where each one's results belong, and a second kernel moves them, turning offsets into
// positions or gaps on the way. A gap within a tile always fits 16 bits; only gaps between tiles
// may be wider.
#include <thrust/iterator/counting_iterator.h>
#include <thrust/iterator/transform_iterator.h>
#include <cub/device/device_scan.cuh>

#include <algorithm>
#include <cstring>

#include "kernels/cuda/diff_emit.cuh"
#include "kernels/cuda/diff_sweep.cuh"
#include "kernels/cuda/tiles.cuh"

namespace driftless::cuda {
namespace {

struct HostParts {
  DevTensor* tensors = nullptr;
  std::uint32_t* tile_tensor = nullptr;
  Summary* summary = nullptr;
  StreamEntry* entries = nullptr;
};

std::uint64_t scan_bytes(std::uint32_t tiles) {
  std::size_t bytes = 0;
  cub::DeviceScan::ExclusiveScan(
      nullptr, bytes,
      thrust::make_transform_iterator(thrust::counting_iterator<std::uint32_t>(0),
                                      ReadTile{nullptr}),
      static_cast<Before*>(nullptr), Join{}, Before{0, 0}, tiles);
  return bytes;
}

Parts carve_dev(std::byte* begin, std::uint32_t tensors, std::uint32_t tiles, unsigned unit_bytes,
                std::uint64_t max_changed, std::uint64_t scan, std::uint64_t* used) {
  Carver carver(begin);
  Parts parts;
  parts.tensors = carver.take<DevTensor>(tensors);
  parts.tile_tensor = carver.take<std::uint32_t>(tiles);
  parts.tiles = carver.take<Tile>(tiles);
  parts.before = carver.take<Before>(tiles);
  parts.wide = carver.take<std::uint32_t>(tensors);
  parts.cursor = carver.take<unsigned long long>(1);
  parts.scan = carver.take<std::byte>(scan);
  parts.slot_offsets = carver.take<std::uint16_t>(max_changed);
  parts.slot_values = carver.take<std::byte>(max_changed * unit_bytes);
  std::byte* const results =
      carver.take<std::byte>(sizeof(Summary) + tensors * sizeof(StreamEntry));
  parts.summary = reinterpret_cast<Summary*>(results);
  parts.entries = reinterpret_cast<StreamEntry*>(results + sizeof(Summary));
  if (used != nullptr) *used = carver.used();
  return parts;
}

HostParts carve_host(std::byte* begin, std::uint32_t tensors, std::uint32_t tiles,
                     std::uint64_t* used) {
  Carver carver(begin);
  HostParts parts;
  parts.tensors = carver.take<DevTensor>(tensors);
  parts.tile_tensor = carver.take<std::uint32_t>(tiles);
  std::byte* const results =
      carver.take<std::byte>(sizeof(Summary) + tensors * sizeof(StreamEntry));
  parts.summary = reinterpret_cast<Summary*>(results);
  parts.entries = reinterpret_cast<StreamEntry*>(results + sizeof(Summary));
  if (used != nullptr) *used = carver.used();
  return parts;
}

std::uint64_t tiles_of(std::uint64_t units, unsigned unit_bytes) {
  const std::uint64_t tile_units = kTileBytes / unit_bytes;
  return units / tile_units + (units % tile_units != 0 ? 1 : 0);
}

constexpr int kArchitectures[] = {__CUDA_ARCH_LIST__};
// Whether all of the device code can wait for a kernel that still runs; ascending.
constexpr bool kCanBeEarly = kArchitectures[0] >= 900;

// Queues a kernel of diff_emit.cuh: it starts while the one before it ends, which hides the launch.
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

template <unsigned W>
Status queue_diff(const Parts& parts, std::uint32_t tiles, std::uint64_t max_changed,
                  cudaStream_t stream) {
  constexpr int kShared = kWarps * sizeof(List<W>);
  DRIFTLESS_RETURN_IF_ERROR(check(
      cudaFuncSetAttribute(diff_tiles<W>, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared),
      "asking for shared memory"));
  diff_tiles<W>
      <<<(tiles + kWarps - 1) / kWarps, kWarps * 32, kShared, stream>>>(parts, tiles, max_changed);
  return check_launch("diff_tiles");
}

template <unsigned W>
Status queue(const Parts& parts, std::uint32_t tensors, std::uint32_t tiles,
             std::uint64_t max_changed, std::uint64_t scan, PositionCoding coding,
             std::byte* positions, std::byte* values, const HostParts& host, cudaStream_t stream) {
  if (tiles != 0) {
    DRIFTLESS_RETURN_IF_ERROR(queue_diff<W>(parts, tiles, max_changed, stream));
    std::size_t bytes = scan;
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
    return check(cudaMemcpyAsync(host.summary, parts.summary,
                                 sizeof(Summary) + tensors * sizeof(StreamEntry),
                                 cudaMemcpyDeviceToHost, stream),
                 "fetching the results of a comparison");
  }
  const auto kernel = coding == PositionCoding::kGaps ? emit<W, true> : emit<W, false>;
  return launch_next("emit", kernel, (tiles + kEmitTiles - 1) / kEmitTiles + 1, kEmitWarps * 32,
                     stream, parts, tensors, tiles, max_changed, positions, values,
                     reinterpret_cast<std::uint64_t*>(host.summary));
}

constexpr const char* kClear = "clearing a workspace";

}  // namespace

WorkspaceSize DiffBatch::workspace_size(std::span<const std::uint64_t> units, unsigned unit_bytes,
                                        std::uint64_t max_changed) {
  std::uint64_t tiles = 0;
  for (const std::uint64_t count : units) tiles += tiles_of(count, unit_bytes);
  WorkspaceSize size;
  const auto tensors = static_cast<std::uint32_t>(units.size());
  carve_dev(nullptr, tensors, static_cast<std::uint32_t>(tiles), unit_bytes, max_changed,
            scan_bytes(static_cast<std::uint32_t>(tiles)), &size.dev_bytes);
  carve_host(nullptr, tensors, static_cast<std::uint32_t>(tiles), &size.host_bytes);
  return size;
}

Result<DiffBatch> DiffBatch::make(std::span<const std::uint64_t> units, unsigned unit_bytes,
                                  std::uint64_t max_changed, const Workspace& workspace,
                                  Stream stream) {
  if (!valid_width(unit_bytes)) {
    return error(StatusCode::kInvalidArgument, "units of ", unit_bytes,
                 " bytes cannot be compared");
  }
  std::uint64_t tiles = 0;
  for (const std::uint64_t count : units) tiles += tiles_of(count, unit_bytes);
  if (tiles >= (std::uint64_t{1} << 31) || units.size() >= (std::uint64_t{1} << 31)) {
    return error(StatusCode::kInvalidArgument, "a batch of ", units.size(), " tensors in ", tiles,
                 " tiles is too large: cut it in two");
  }
  DRIFTLESS_RETURN_IF_ERROR(check_workspace(
      workspace, workspace_size(units, unit_bytes, max_changed), "comparing on the device"));
  DiffBatch batch;
  batch.unit_bytes_ = unit_bytes;
  batch.max_changed_ = max_changed;
  batch.tensors_ = static_cast<std::uint32_t>(units.size());
  batch.tiles_ = static_cast<std::uint32_t>(tiles);
  batch.scan_bytes_ = scan_bytes(batch.tiles_);
  batch.dev_ = workspace.dev;
  batch.host_ = workspace.host;
  const HostParts host = carve_host(batch.host_, batch.tensors_, batch.tiles_, nullptr);
  std::uint32_t tile = 0;
  for (std::uint32_t i = 0; i < batch.tensors_; ++i) {
    const auto own = static_cast<std::uint32_t>(tiles_of(units[i], unit_bytes));
    host.tensors[i] = {nullptr, nullptr, units[i], 0, tile, 0};
    std::fill_n(host.tile_tensor + tile, own, i);
    tile += own;
  }
  *host.summary = {};
  const Parts dev = carve_dev(batch.dev_, batch.tensors_, batch.tiles_, unit_bytes, max_changed,
                              batch.scan_bytes_, nullptr);
  DRIFTLESS_RETURN_IF_ERROR(
      check(cudaMemcpyAsync(dev.tile_tensor, host.tile_tensor, tiles * sizeof(std::uint32_t),
                            cudaMemcpyHostToDevice, native(stream)),
            "placing the table of tiles"));
  DRIFTLESS_RETURN_IF_ERROR(
      check(cudaMemsetAsync(dev.wide, 0, batch.tensors_ * sizeof(std::uint32_t), native(stream)),
            kClear));
  DRIFTLESS_RETURN_IF_ERROR(
      check(cudaMemsetAsync(dev.cursor, 0, sizeof(*dev.cursor), native(stream)), kClear));
  return batch;
}

Status DiffBatch::run(std::span<const Tensor> tensors, PositionCoding coding,
                      std::byte* positions_dev, std::byte* values_dev, Stream stream) {
  if (tensors.size() != tensors_) {
    return error(StatusCode::kInvalidArgument, "the batch was made for ", tensors_, " tensors, ",
                 tensors.size(), " were given");
  }
  const HostParts host = carve_host(host_, tensors_, tiles_, nullptr);
  const Parts dev =
      carve_dev(dev_, tensors_, tiles_, unit_bytes_, max_changed_, scan_bytes_, nullptr);
  bool moved = false;  // most runs are over the same memory as the last one
  for (std::uint32_t i = 0; i < tensors_; ++i) {
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
        check(cudaMemcpyAsync(dev.tensors, host.tensors, tensors_ * sizeof(DevTensor),
                              cudaMemcpyHostToDevice, queue_on),
              "placing the table of tensors"));
  }
  const auto go = [&](auto queue_width) {
    return queue_width(dev, tensors_, tiles_, max_changed_, scan_bytes_, coding, positions_dev,
                       values_dev, host, queue_on);
  };
  switch (unit_bytes_) {
    case 1: return go(queue<1>);
    case 2: return go(queue<2>);
    case 4: return go(queue<4>);
    default: return go(queue<8>);
  }
}

DiffBatch::Results DiffBatch::results() const {
  const HostParts host = carve_host(host_, tensors_, tiles_, nullptr);
  return {host.summary->changed, host.summary->position_bytes, {host.entries, tensors_}};
}

}  // namespace driftless::cuda
