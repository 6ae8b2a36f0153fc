// SPDX-License-Identifier: Apache-2.0
#include <cub/device/device_scan.cuh>

#include "kernels/cuda/compact.cuh"
#include "kernels/cuda/patch.cuh"

namespace driftless::cuda {
namespace {

using namespace compact;

constexpr std::uint32_t kSymbols = kCompactStepSymbols;
constexpr unsigned kCountThreads = 256, kCountBlocks = 2048;
constexpr std::uint32_t kRun = 64;            // units of a sampled run
constexpr std::uint32_t kMostEvery = 64;      // at least every 64th run is sampled
constexpr std::uint64_t kSampled = 1U << 18;  // least sample of a block, if it has so many units

struct DeviceCounts {
  std::uint32_t units[kCompactClasses];
  std::uint32_t changes[kCompactClasses * kSymbols];
};
struct EncodeParts : CompactParts {
  DeviceCounts* counts = nullptr;
  CompactTile* sizes = nullptr;
  std::uint32_t* begins = nullptr;  // of each change, on its tile's axis; on the device
  std::byte* old_values = nullptr;  // on the device
  std::uint64_t* ends = nullptr;    // of each tile's stream; on the device
  std::byte* scan = nullptr;        // on the device
};
std::uint64_t scan_bytes(std::uint32_t tiles) {
  std::size_t bytes = 0;
  cub::DeviceScan::InclusiveSum(nullptr, bytes, static_cast<std::uint64_t*>(nullptr),
                                static_cast<std::uint64_t*>(nullptr), tiles);
  return bytes;
}

EncodeParts carve_encode(std::byte* memory, const CompactShape& shape, MemoryKind kind,
                         std::uint64_t* used = nullptr) {
  Carver carver(memory);
  EncodeParts parts{carve_compact(carver, shape, kind)};
  parts.counts = carver.take<DeviceCounts>(1);
  parts.sizes = carver.take<CompactTile>(shape.tiles);
  if (kind == MemoryKind::kDevice) {
    parts.begins = carver.take<std::uint32_t>(shape.changes);
    parts.old_values = carver.take<std::byte>(shape.changes * shape.fields.unit_bytes);
    parts.ends = carver.take<std::uint64_t>(shape.tiles);
    parts.scan = carver.take<std::byte>(scan_bytes(shape.tiles));
  }
  if (used != nullptr) *used = carver.used();
  return parts;
}

__device__ __forceinline__ std::uint64_t position_of(const CompactBlock& block,
                                                     const std::byte* positions, std::uint64_t k) {
  const unsigned bytes = block.entry.position_bytes;
  return load_position(positions + block.entry.position_begin + k * bytes, bytes);
}

// The first change of the block that is not before `unit`.
__device__ std::uint64_t first_from(const CompactBlock& block, const std::byte* positions,
                                    std::uint64_t unit) {
  std::uint64_t low = 0, high = block.entry.count;
  while (low < high) {
    const std::uint64_t middle = (low + high) / 2;
    if (position_of(block, positions, middle) < unit) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

__global__ void find_changes(EncodeParts parts, const std::byte* positions, std::uint32_t tiles) {
  const std::uint32_t number = blockIdx.x * blockDim.x + threadIdx.x;
  if (number >= tiles) return;
  TileWork& tile = parts.tiles[number];
  const CompactBlock& block = parts.blocks[tile.block];
  tile.change_begin = first_from(block, positions, tile.first);
  tile.changes = static_cast<std::uint32_t>(first_from(block, positions, tile.first + tile.units) -
                                            tile.change_begin);
}

__device__ __forceinline__ std::uint32_t sampled_every(std::uint64_t units) {
  const std::uint64_t every = units / kSampled;
  return static_cast<std::uint32_t>(every < 1 ? 1 : every > kMostEvery ? kMostEvery : every);
}

// A warp counts a tile: the classes of a sample of its units, and all of its changes.
template <typename Unit, bool Cut>
__global__ void __launch_bounds__(kCountThreads)
    count_tiles(EncodeParts parts, CompactFields fields, const std::byte* positions,
                const std::byte* values, std::uint32_t tiles) {
  __shared__ std::uint32_t classes[kCompactClasses];
  for (unsigned i = threadIdx.x; i < kCompactClasses; i += blockDim.x) classes[i] = 0;
  __syncthreads();
  const unsigned lane = threadIdx.x % 32, warps = gridDim.x * blockDim.x / 32;
  for (std::uint32_t number = (blockIdx.x * blockDim.x + threadIdx.x) / 32; number < tiles;
       number += warps) {
    const TileWork tile = parts.tiles[number];
    const CompactBlock& block = parts.blocks[tile.block];
    const TileUnits<Unit, Cut> units(block, tile.first);
    const std::uint32_t every = sampled_every(block.place.units);
    for (std::uint32_t run = 0; run < tile.units; run += kRun * every) {
      for (std::uint32_t at = run + lane; at < tile.units && at < run + kRun; at += 32) {
        atomicAdd(classes + fields.class_of(units[at]), every);
      }
    }
    const auto* const to =
        reinterpret_cast<const Unit*>(values) + block.entry.value_begin + tile.change_begin;
    for (std::uint32_t k = lane; k < tile.changes; k += 32) {
      const std::uint64_t at = position_of(block, positions, tile.change_begin + k) - tile.first;
      const std::uint32_t from = units[static_cast<std::uint32_t>(at)];
      const std::uint32_t bin =
          fields.class_of(from) * kSymbols + step_between(fields, from, to[k]).symbol;
      const unsigned same = __match_any_sync(__activemask(), bin);
      if (lane == static_cast<unsigned>(__ffs(same)) - 1) {
        atomicAdd(parts.counts->changes + bin, static_cast<std::uint32_t>(__popc(same)));
      }
    }
  }
  __syncthreads();
  for (unsigned i = threadIdx.x; i < kCompactClasses; i += blockDim.x) {
    if (classes[i] != 0) atomicAdd(parts.counts->units + i, classes[i]);
  }
}

// Computes where each change begins on the axis of its tile. A warp processes a tile.
template <typename Unit, bool Cut>
__global__ void __launch_bounds__(kCountThreads)
    find_begins(EncodeParts parts, CompactFields fields, const std::byte* positions,
                std::uint32_t tiles) {
  const unsigned lane = threadIdx.x % 32;
  const std::uint32_t number = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
  if (number >= tiles) return;
  const TileWork tile = parts.tiles[number];
  const CompactBlock& block = parts.blocks[tile.block];
  const TileUnits<Unit, Cut> units(block, tile.first);
  const std::uint16_t* const hazards = parts.tables[block.table].hazards;
  const std::uint32_t* const sums = parts.sums + std::uint64_t{number} * kTileSums<Unit>;
  for (std::uint32_t k = lane; k < tile.changes; k += 32) {
    const auto at = static_cast<std::uint32_t>(
        position_of(block, positions, tile.change_begin + k) - tile.first);
    std::uint32_t begin = sums[at / kHazardGroup];
    for (std::uint32_t i = at / kHazardGroup * kHazardGroup; i < at;
         i += TileUnits<Unit, Cut>::kPack) {
      const auto pack = units.pack(i, tile.units);
#pragma unroll
      for (unsigned j = 0; j < TileUnits<Unit, Cut>::kPack; ++j) {
        if (i + j < at) begin += __ldg(hazards + fields.class_of(pack.unit(j)));
      }
    }
    const std::uint64_t change = block.entry.value_begin + tile.change_begin + k;
    parts.begins[change] = begin;
    reinterpret_cast<Unit*>(parts.old_values)[change] = static_cast<Unit>(units[at]);
  }
}

struct ByteCounter {
  std::uint32_t bytes = 0;
  constexpr void put(std::byte) { ++bytes; }
};

// Encodes a tile in one thread. False if the table lacks the class or the step of a change.
template <typename Unit, typename Coder>
__device__ bool encode_tile(const EncodeParts& parts, const CompactFields& fields, const Axis& axis,
                            const TileWork& tile, const Unit* from, const Unit* to,
                            const std::uint32_t* begins, Coder& encoder) {
  const DeviceTable& table = parts.tables[parts.blocks[tile.block].table];
  for (std::uint32_t k = tile.changes; k-- > 0;) {
    const unsigned hazard_class = fields.class_of(from[k]);
    const std::uint32_t hazard = table.hazards[hazard_class], row = table.step_rows[hazard_class];
    const CompactSteps* const steps =
        row == 0 ? nullptr : parts.steps + table.first_steps + row - 1;
    const Step step = step_between(fields, from[k], to[k]);
    if (hazard == 0 || !has_step(steps, step)) return false;
    put_step(encoder, steps, step);
    const std::uint32_t end =
        k == 0 ? 0 : begins[k - 1] + table.hazards[fields.class_of(from[k - 1])];
    put_gap(encoder, axis, begins[k] - end, hazard);
  }
  return true;
}

// Without `streams` computes the sizes of the tiles; with them writes their bytes at the places
// that the sizes give.
template <typename Unit>
__global__ void __launch_bounds__(kTileThreads)
    encode_tiles(EncodeParts parts, CompactFields fields, const std::byte* values,
                 std::uint32_t tiles, std::byte* streams) {
  __shared__ Axis axis;
  share_axis(axis);
  const std::uint32_t number = blockIdx.x * kTileThreads + threadIdx.x;
  if (number >= tiles) return;
  const TileWork tile = parts.tiles[number];
  const std::uint64_t first = parts.blocks[tile.block].entry.value_begin + tile.change_begin;
  const auto* const from = reinterpret_cast<const Unit*>(parts.old_values) + first;
  const auto* const to = reinterpret_cast<const Unit*>(values) + first;
  const std::uint32_t* const begins = parts.begins + first;
  if (streams != nullptr) {
    if (tile.changes == 0) return;
    BasicEncoder<BackwardBytes> encoder({streams + parts.ends[number]});
    if (encode_tile(parts, fields, axis, tile, from, to, begins, encoder)) (void)encoder.finish();
    return;
  }
  CompactTile size{tile.changes, 0};
  if (tile.changes != 0) {
    BasicEncoder<ByteCounter> encoder(ByteCounter{});
    const bool good = encode_tile(parts, fields, axis, tile, from, to, begins, encoder);
    size.bytes = good ? encoder.finish().bytes : 0;
    if (!good) atomicMin(parts.bad, number);
  }
  parts.sizes[number] = size;
  parts.ends[number] = size.bytes;  // summed later
}

CompactShape shape_of(std::span<const CompactBlock> blocks, const CompactFields& fields,
                      std::uint32_t tables) {
  CompactShape shape;
  shape.fields = fields;
  shape.blocks = static_cast<std::uint32_t>(blocks.size());
  shape.tiles = static_cast<std::uint32_t>(tiles_of(fields, blocks));
  shape.tables = tables;
  shape.steps = tables * fields.classes();
  for (const CompactBlock& block : blocks) {
    shape.changes = std::max(shape.changes, block.entry.value_begin + block.entry.count);
  }
  return shape;
}

unsigned warp_blocks(std::uint32_t tiles) {
  return (tiles + kCountThreads / 32 - 1) / (kCountThreads / 32);
}

}  // namespace

WorkspaceSize CompactEncode::workspace_size(std::span<const CompactBlock> blocks,
                                            const CompactFields& fields, std::uint32_t tables) {
  WorkspaceSize size;
  const CompactShape shape = shape_of(blocks, fields, tables);
  std::ignore = carve_encode(nullptr, shape, MemoryKind::kDevice, &size.dev_bytes);
  std::ignore = carve_encode(nullptr, shape, MemoryKind::kHost, &size.host_bytes);
  return size;
}

Result<CompactEncode> CompactEncode::make(std::span<const CompactBlock> blocks,
                                          const CompactFields& fields, std::uint32_t tables,
                                          const std::byte* positions_dev,
                                          const std::byte* values_dev, const Workspace& workspace,
                                          Stream stream) {
  if (tiles_of(fields, blocks) >= kNoTile) {
    return error(StatusCode::kInvalidArgument, tiles_of(fields, blocks),
                 " tiles of compact at once");
  }
  DRIFTLESS_RETURN_IF_ERROR(
      check_workspace(workspace, workspace_size(blocks, fields, tables), "compact, encoding"));
  CompactEncode encode;
  encode.shape_ = shape_of(blocks, fields, tables);
  encode.cut_ = any_cut(blocks);
  encode.positions_dev_ = positions_dev;
  encode.values_dev_ = values_dev;
  encode.dev_ = workspace.dev;
  encode.host_ = workspace.host;
  const CompactShape& shape = encode.shape_;
  const EncodeParts host = carve_encode(encode.host_, shape, MemoryKind::kHost);
  const EncodeParts dev = carve_encode(encode.dev_, shape, MemoryKind::kDevice);
  const cudaStream_t queue = native(stream);
  DRIFTLESS_RETURN_IF_ERROR(fill_blocks(fields, blocks, host));
  DRIFTLESS_RETURN_IF_ERROR(
      upload(dev.blocks, host.blocks, blocks.size() * sizeof(CompactBlock), queue));
  DRIFTLESS_RETURN_IF_ERROR(upload(dev.tiles, host.tiles, shape.tiles * sizeof(TileWork), queue));
  DRIFTLESS_RETURN_IF_ERROR(
      cuda::check(cudaMemsetAsync(dev.counts, 0, sizeof(DeviceCounts), queue), "compact: counts"));
  if (shape.tiles == 0) return encode;
  find_changes<<<(shape.tiles + 255) / 256, 256, 0, queue>>>(dev, positions_dev, shape.tiles);
  with_tiles(fields, encode.cut_, [&]<typename Unit, typename Cut>(Unit, Cut) {
    count_tiles<Unit, Cut::value>
        <<<std::min(warp_blocks(shape.tiles), kCountBlocks), kCountThreads, 0, queue>>>(
            dev, fields, positions_dev, values_dev, shape.tiles);
  });
  DRIFTLESS_RETURN_IF_ERROR(check_launch("count_tiles"));
  DRIFTLESS_RETURN_IF_ERROR(cuda::check(
      cudaMemcpyAsync(host.counts, dev.counts, sizeof(DeviceCounts), cudaMemcpyDeviceToHost, queue),
      "compact: counts"));
  return encode;
}

CompactCounts CompactEncode::counts() const {
  CompactCounts counts;
  if (shape_.tiles == 0) return counts;
  const DeviceCounts& found = *carve_encode(host_, shape_, MemoryKind::kHost).counts;
  for (std::size_t c = 0; c < kCompactClasses; ++c) {
    counts.units[c] = found.units[c];
    for (std::size_t s = 0; s < kSymbols; ++s) {
      counts.steps[c][s] = found.changes[c * kSymbols + s];
      counts.changes[c] += counts.steps[c][s];
    }
  }
  return counts;
}

Status CompactEncode::size(std::span<const CompactTable> tables, Stream stream) {
  const EncodeParts host = carve_encode(host_, shape_, MemoryKind::kHost);
  const EncodeParts dev = carve_encode(dev_, shape_, MemoryKind::kDevice);
  const cudaStream_t queue = native(stream);
  if (tables.size() != shape_.tables) {
    return error(StatusCode::kInvalidArgument, tables.size(), " tables of compact, not ",
                 shape_.tables);
  }
  DRIFTLESS_RETURN_IF_ERROR(fill_tables(shape_.fields, tables, shape_, host));
  DRIFTLESS_RETURN_IF_ERROR(
      upload(dev.tables, host.tables, tables.size() * sizeof(DeviceTable), queue));
  std::uint64_t steps = 0;
  for (const CompactTable& table : tables) steps += table.steps.size();
  DRIFTLESS_RETURN_IF_ERROR(upload(dev.steps, host.steps, steps * sizeof(CompactSteps), queue));
  *host.bad = kNoTile;
  DRIFTLESS_RETURN_IF_ERROR(upload(dev.bad, host.bad, sizeof(std::uint32_t), queue));
  if (shape_.tiles == 0) return {};
  DRIFTLESS_RETURN_IF_ERROR(sum_hazards(dev, shape_, cut_, queue));
  with_tiles(shape_.fields, cut_, [&]<typename Unit, typename Cut>(Unit, Cut) {
    find_begins<Unit, Cut::value><<<warp_blocks(shape_.tiles), kCountThreads, 0, queue>>>(
        dev, shape_.fields, positions_dev_, shape_.tiles);
    encode_tiles<Unit>
        <<<(shape_.tiles + kTileThreads - 1) / kTileThreads, kTileThreads, 0, queue>>>(
            dev, shape_.fields, values_dev_, shape_.tiles, nullptr);
  });
  DRIFTLESS_RETURN_IF_ERROR(check_launch("encode_tiles"));
  std::size_t room = scan_bytes(shape_.tiles);
  DRIFTLESS_RETURN_IF_ERROR(cuda::check(
      cub::DeviceScan::InclusiveSum(dev.scan, room, dev.ends, dev.ends, shape_.tiles, queue),
      "compact: ends of the streams"));
  for (const auto& [to, from, bytes] :
       {std::tuple<void*, const void*, std::uint64_t>(host.sizes, dev.sizes,
                                                      shape_.tiles * sizeof(CompactTile)),
        std::tuple<void*, const void*, std::uint64_t>(host.bad, dev.bad, sizeof(std::uint32_t))}) {
    DRIFTLESS_RETURN_IF_ERROR(cuda::check(
        cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, queue), "compact: sizes"));
  }
  return {};
}

Result<std::span<const CompactTile>> CompactEncode::tiles() const {
  const EncodeParts host = carve_encode(host_, shape_, MemoryKind::kHost);
  if (shape_.tiles != 0 && *host.bad != kNoTile) {
    const TileWork& tile = host.tiles[*host.bad];
    return error(StatusCode::kInvalidArgument, "block number ", tile.block, ": a change in the ",
                 tile.units, " units from ", tile.first, " is not in the table of its encoding");
  }
  return std::span<const CompactTile>(host.sizes, shape_.tiles);
}

Status CompactEncode::run(std::byte* streams_dev, Stream stream) const {
  if (shape_.tiles == 0) return {};
  const EncodeParts dev = carve_encode(dev_, shape_, MemoryKind::kDevice);
  with_unit(shape_.fields, [&]<typename Unit>(Unit) {
    encode_tiles<Unit>
        <<<(shape_.tiles + kTileThreads - 1) / kTileThreads, kTileThreads, 0, native(stream)>>>(
            dev, shape_.fields, values_dev_, shape_.tiles, streams_dev);
  });
  return check_launch("encode_tiles");
}

}  // namespace driftless::cuda
