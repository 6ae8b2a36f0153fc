// One pass over both sides, then a short one over what was found.
//
// A warp takes a tile of 32 KiB of a tensor: compares it with 16-byte loads, collects the offsets of
// the differing units in shared memory, takes room for them from a cursor, and writes offsets and
// new values there. Tiles get their room in any order, so nobody waits for a neighbour. A scan over
// the tiles' counts then says where each one's results belong, and a second kernel moves them,
// turning offsets into positions or gaps on the way. A gap within a tile always fits 16 bits; only
// gaps between tiles may be wider.
#include <cub/device/device_scan.cuh>
#include <cub/block/block_scan.cuh>
#include <thrust/iterator/counting_iterator.h>
#include <thrust/iterator/transform_iterator.h>

#include <algorithm>
#include <cstring>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/operations.h"

namespace driftless::cuda {
namespace {

constexpr std::uint32_t kTileBytes = 32768;  // of one side; offsets in a tile fit 16 bits
constexpr unsigned kWarps = 8;               // per block
constexpr unsigned kBatch = 4;               // 16-byte groups per lane and side in flight
constexpr unsigned kListUnits = 2048;  // offsets that a warp collects before it is called dense

struct DevTensor {
  const std::byte* old_dev;
  const std::byte* new_dev;
  std::uint64_t units;
  std::uint32_t first_tile;
  std::uint32_t wide;  // bytes of its positions
};

struct Tile {
  std::uint64_t base;  // of its slots
  std::uint32_t count;
  std::uint16_t first, last;  // offsets of its first and last change
};

// What lies before a tile.
struct Before {
  std::uint64_t changed;
  std::uint32_t filled_tile;  // 1 + the last tile that has changes; 0: none
};
struct Join {
  __host__ __device__ Before operator()(const Before& a, const Before& b) const {
    return {a.changed + b.changed, a.filled_tile > b.filled_tile ? a.filled_tile : b.filled_tile};
  }
};
struct ReadTile {
  const Tile* tiles;
  __host__ __device__ Before operator()(std::uint32_t tile) const {
    const std::uint32_t count = tiles[tile].count;
    return {count, count == 0 ? 0 : tile + 1};
  }
};

struct Summary {
  std::uint64_t changed;
  std::uint64_t position_bytes;
};

// Everything in device memory.
struct Parts {
  DevTensor* tensors = nullptr;
  std::uint32_t* tile_tensor = nullptr;
  Tile* tiles = nullptr;
  Before* before = nullptr;
  unsigned long long* cursor = nullptr;
  std::byte* scan = nullptr;
  std::uint16_t* slot_offsets = nullptr;
  std::byte* slot_values = nullptr;
  Summary* summary = nullptr;  // the entries follow it: both come back in one copy
  StreamEntry* entries = nullptr;
};

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
  parts.before = carver.take<Before>(tiles + 1);
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

// Bit i: unit i of the 16 bytes differs.
template <unsigned W>
__device__ __forceinline__ unsigned differing(const uint4& a, const uint4& b) {
  const unsigned x[4] = {a.x ^ b.x, a.y ^ b.y, a.z ^ b.z, a.w ^ b.w};
  unsigned mask = 0;
  if constexpr (W == 8) {
    mask = ((x[0] | x[1]) != 0 ? 1U : 0U) | ((x[2] | x[3]) != 0 ? 2U : 0U);
  } else {
#pragma unroll
    for (unsigned i = 0; i < 4; ++i) {
      if constexpr (W == 4) {
        if (x[i] != 0) mask |= 1U << i;
      } else if constexpr (W == 2) {
        if ((x[i] & 0xffffU) != 0) mask |= 1U << (2 * i);
        if (x[i] > 0xffffU) mask |= 2U << (2 * i);
      } else {
#pragma unroll
        for (unsigned byte = 0; byte < 4; ++byte) {
          if ((x[i] & (0xffU << (8 * byte))) != 0) mask |= 1U << (4 * i + byte);
        }
      }
    }
  }
  return mask;
}

__device__ __forceinline__ uint4 load_streaming(const uint4* p) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
}

// A tile as the lanes see it: batch by batch, a mask per lane and group.
template <unsigned W>
struct TileView {
  static constexpr unsigned kGroupUnits = 16 / W;

  const std::byte* old_dev;
  const std::byte* new_dev;
  std::uint32_t units;
  std::uint32_t groups;  // of 16 bytes that can be loaded as such

  __device__ TileView(const std::byte* before, const std::byte* after, std::uint32_t count)
      : old_dev(before), new_dev(after), units(count), groups(0) {
    const bool aligned = ((reinterpret_cast<std::uintptr_t>(before) |
                           reinterpret_cast<std::uintptr_t>(after)) %
                          16) == 0;
    if (aligned) groups = count / kGroupUnits;
  }
  __device__ unsigned batches() const {
    constexpr unsigned kBatchUnits = kBatch * 32 * kGroupUnits;
    return (units + kBatchUnits - 1) / kBatchUnits;
  }

  // Group by group, unit by unit where they do not lie at a multiple of 16 or are the last.
  __device__ unsigned group_mask(std::uint32_t group) const {
    const auto* const a = reinterpret_cast<const Unit<W>*>(old_dev);
    const auto* const b = reinterpret_cast<const Unit<W>*>(new_dev);
    const std::uint32_t first = group * kGroupUnits;
    unsigned mask = 0;
#pragma unroll
    for (unsigned i = 0; i < kGroupUnits; ++i) {
      if (first + i < units && a[first + i] != b[first + i]) mask |= 1U << i;
    }
    return mask;
  }

  __device__ __forceinline__ void masks(unsigned batch, unsigned lane,
                                        unsigned (&mask)[kBatch]) const {
    const std::uint32_t first = batch * kBatch * 32 + lane;
    const uint4* const a = reinterpret_cast<const uint4*>(old_dev) + first;
    const uint4* const b = reinterpret_cast<const uint4*>(new_dev) + first;
    if ((batch + 1) * kBatch * 32 <= groups) {
      uint4 x[kBatch], y[kBatch];
#pragma unroll
      for (unsigned j = 0; j < kBatch; ++j) {
        x[j] = load_streaming(a + j * 32);
        y[j] = load_streaming(b + j * 32);
      }
#pragma unroll
      for (unsigned j = 0; j < kBatch; ++j) mask[j] = differing<W>(x[j], y[j]);
      return;
    }
#pragma unroll 1
    for (unsigned j = 0; j < kBatch; ++j) {
      const std::uint32_t group = first + j * 32;
      const unsigned found = group < groups
                                 ? differing<W>(load_streaming(a + j * 32), load_streaming(b + j * 32))
                                 : group_mask(group);
      if (j == 0) mask[0] = found;
      if (j == 1) mask[1] = found;
      if (j == 2) mask[2] = found;
      if (j == 3) mask[3] = found;
    }
  }
};

// Appends the batch's offsets to `list` behind the first `filled`, in order; returns how many there
// are. Writes nothing past `room`.
template <unsigned W>
__device__ __forceinline__ unsigned collect(const unsigned (&mask)[kBatch], unsigned batch,
                                            unsigned lane, unsigned filled, unsigned room,
                                            std::uint16_t* list) {
  constexpr unsigned kGroupUnits = 16 / W;
  static_assert(kBatch == 4);
  // Two counts of up to 512 in a word.
  const unsigned own01 = __popc(mask[0]) | (__popc(mask[1]) << 16);
  const unsigned own23 = __popc(mask[2]) | (__popc(mask[3]) << 16);
  unsigned sum01 = own01, sum23 = own23;
#pragma unroll
  for (unsigned step = 1; step < 32; step *= 2) {
    const unsigned left01 = __shfl_up_sync(~0U, sum01, step);
    const unsigned left23 = __shfl_up_sync(~0U, sum23, step);
    if (lane >= step) {
      sum01 += left01;
      sum23 += left23;
    }
  }
  const unsigned all01 = __shfl_sync(~0U, sum01, 31), all23 = __shfl_sync(~0U, sum23, 31);
  const unsigned counts[kBatch] = {all01 & 0xffffU, all01 >> 16, all23 & 0xffffU, all23 >> 16};
  const unsigned before[kBatch] = {(sum01 - own01) & 0xffffU, (sum01 - own01) >> 16,
                                   (sum23 - own23) & 0xffffU, (sum23 - own23) >> 16};
  unsigned total = 0;
#pragma unroll
  for (unsigned j = 0; j < kBatch; ++j) {
    unsigned at = filled + total + before[j];
    unsigned left = mask[j];
    const unsigned first = ((batch * kBatch + j) * 32 + lane) * kGroupUnits;
    while (left != 0) {
      if (at < room) list[at] = static_cast<std::uint16_t>(first + __ffs(left) - 1);
      left &= left - 1;
      ++at;
    }
    total += counts[j];
  }
  return total;
}

template <unsigned W>
__device__ __forceinline__ void write_slots(const Parts& parts, const std::byte* new_dev,
                                            const std::uint16_t* list, unsigned count,
                                            std::uint64_t base, unsigned lane) {
  const auto* const units = reinterpret_cast<const Unit<W>*>(new_dev);
  auto* const values = reinterpret_cast<Unit<W>*>(parts.slot_values) + base;
  for (unsigned k = lane; k < count; k += 32) {
    const std::uint16_t offset = list[k];
    parts.slot_offsets[base + k] = offset;
    values[k] = units[offset];
  }
}

template <unsigned W>
__global__ void __launch_bounds__(kWarps * 32)
    diff_tiles(Parts parts, std::uint32_t tiles, std::uint64_t max_changed) {
  __shared__ std::uint16_t lists[kWarps][kListUnits];
  constexpr std::uint32_t kTileUnits = kTileBytes / W;
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const std::uint32_t tile = blockIdx.x * kWarps + warp;
  if (tile >= tiles) return;
  std::uint16_t* const list = lists[warp];
  const DevTensor tensor = parts.tensors[parts.tile_tensor[tile]];
  const std::uint64_t first_unit = std::uint64_t{tile - tensor.first_tile} * kTileUnits;
  const std::uint64_t left = tensor.units - first_unit;
  const TileView<W> view(tensor.old_dev + first_unit * W, tensor.new_dev + first_unit * W,
                         left < kTileUnits ? static_cast<std::uint32_t>(left) : kTileUnits);
  const unsigned batches = view.batches();

  unsigned count = 0;
  for (unsigned batch = 0; batch < batches; ++batch) {
    unsigned mask[kBatch];
    view.masks(batch, lane, mask);
    if (__any_sync(~0U, (mask[0] | mask[1] | mask[2] | mask[3]) != 0)) {
      count += collect<W>(mask, batch, lane, count, kListUnits, list);
    }
  }
  unsigned long long base = 0;
  if (lane == 0) base = count == 0 ? 0 : atomicAdd(parts.cursor, count);
  base = __shfl_sync(~0U, base, 0);
  if (count == 0 || base + count > max_changed) {
    if (lane == 0) parts.tiles[tile] = {base, count, 0, 0};
    return;
  }
  __syncwarp();
  std::uint16_t first = 0, last = 0;
  if (count <= kListUnits) {
    write_slots<W>(parts, view.new_dev, list, count, base, lane);
    first = list[0];
    last = list[count - 1];
  } else {  // dense: look again, and write batch by batch
    unsigned done = 0;
    for (unsigned batch = 0; batch < batches; ++batch) {
      unsigned mask[kBatch];
      view.masks(batch, lane, mask);
      const unsigned found = collect<W>(mask, batch, lane, 0, kListUnits, list);
      __syncwarp();
      write_slots<W>(parts, view.new_dev, list, found, base + done, lane);
      if (found != 0) {
        if (done == 0) first = list[0];
        last = list[found - 1];
      }
      done += found;
      __syncwarp();
    }
  }
  if (lane == 0) parts.tiles[tile] = {base, count, first, last};
}

// The gap from the last change before the tile, in the same tensor, to the tile's first.
template <unsigned W>
__device__ __forceinline__ std::uint64_t gap_before(const Parts& parts, std::uint32_t tile,
                                                    const Tile& self, const DevTensor& tensor,
                                                    const Before& before) {
  constexpr std::uint64_t kTileUnits = kTileBytes / W;
  const std::uint64_t here = (tile - tensor.first_tile) * kTileUnits + self.first;
  if (before.filled_tile <= tensor.first_tile) return here;
  const std::uint32_t other = before.filled_tile - 1;
  return here - ((other - tensor.first_tile) * kTileUnits + parts.tiles[other].last) - 1;
}

template <unsigned W>
__global__ void widen_gaps(Parts parts, std::uint32_t tiles) {
  const std::uint32_t tile = blockIdx.x * blockDim.x + threadIdx.x;
  if (tile >= tiles) return;
  const Tile self = parts.tiles[tile];
  if (self.count == 0) return;
  const std::uint32_t number = parts.tile_tensor[tile];
  const std::uint64_t gap =
      gap_before<W>(parts, tile, self, parts.tensors[number], parts.before[tile]);
  if (gap > 0xffffU) atomicMax(&parts.tensors[number].wide, gap > 0xffffffffULL ? 8U : 4U);
}

constexpr unsigned kTableThreads = 1024;

// One block: the tensors' places in the streams.
__global__ void __launch_bounds__(kTableThreads)
    make_table(Parts parts, std::uint32_t tensors, std::uint32_t tiles) {
  using Scan = cub::BlockScan<std::uint64_t, kTableThreads>;
  __shared__ typename Scan::TempStorage storage;
  const Before end = tiles == 0 ? Before{0, 0}
                                : Join{}(parts.before[tiles - 1],
                                         ReadTile{parts.tiles}(tiles - 1));
  std::uint64_t position = 0;
  for (std::uint32_t first = 0; first < tensors; first += kTableThreads) {
    const std::uint32_t i = first + threadIdx.x;
    StreamEntry entry{};
    if (i < tensors) {
      const auto before = [&](std::uint32_t tile) {
        return tile == tiles ? end.changed : parts.before[tile].changed;
      };
      entry.value_begin = before(parts.tensors[i].first_tile);
      entry.count = before(i + 1 < tensors ? parts.tensors[i + 1].first_tile : tiles) -
                    entry.value_begin;
      entry.position_bytes = parts.tensors[i].wide;
    }
    std::uint64_t offset = 0, sum = 0;
    Scan(storage).ExclusiveSum(entry.count * entry.position_bytes, offset, sum);
    entry.position_begin = position + offset;
    if (i < tensors) parts.entries[i] = entry;
    position += sum;
    __syncthreads();
  }
  if (threadIdx.x == 0) *parts.summary = {end.changed, position};
}

// Positions may lie at any multiple of 2.
__device__ __forceinline__ void store_position(std::byte* at, unsigned bytes, std::uint64_t value) {
  auto* const halves = reinterpret_cast<std::uint16_t*>(at);
  const bool whole = reinterpret_cast<std::uintptr_t>(at) % 4 == 0;
  if (bytes == 2) {
    *halves = static_cast<std::uint16_t>(value);
  } else if (bytes == 4 && whole) {
    *reinterpret_cast<std::uint32_t*>(at) = static_cast<std::uint32_t>(value);
  } else {
    for (unsigned i = 0; i < bytes / 2; ++i) {
      halves[i] = static_cast<std::uint16_t>(value >> (16 * i));
    }
  }
}

template <unsigned W, bool Gaps>
__global__ void __launch_bounds__(kWarps * 32)
    emit(Parts parts, std::uint32_t tiles, std::uint64_t max_changed, std::byte* positions,
         std::byte* values) {
  constexpr std::uint64_t kTileUnits = kTileBytes / W;
  const unsigned lane = threadIdx.x % 32;
  const std::uint32_t tile = blockIdx.x * kWarps + threadIdx.x / 32;
  if (tile >= tiles) return;
  const Tile self = parts.tiles[tile];
  const Before before = parts.before[tile];
  const std::uint32_t number = parts.tile_tensor[tile];
  if (self.count == 0 || parts.summary->changed > max_changed) return;
  const DevTensor tensor = parts.tensors[number];
  const StreamEntry entry = parts.entries[number];
  const std::uint64_t first_unit = (tile - tensor.first_tile) * kTileUnits;
  const auto* const slot_values = reinterpret_cast<const Unit<W>*>(parts.slot_values) + self.base;
  const std::uint16_t* const slot_offsets = parts.slot_offsets + self.base;
  auto* const out = reinterpret_cast<Unit<W>*>(values) + before.changed;
  std::byte* const at =
      positions + entry.position_begin + (before.changed - entry.value_begin) * entry.position_bytes;
  const std::uint64_t jump = Gaps ? gap_before<W>(parts, tile, self, tensor, before) : 0;
  for (std::uint32_t k = lane; k < self.count; k += 32) {
    const std::uint32_t offset = slot_offsets[k];
    std::uint64_t position = first_unit + offset;
    if constexpr (Gaps) position = k == 0 ? jump : offset - slot_offsets[k - 1] - 1;
    store_position(at + std::uint64_t{k} * entry.position_bytes, entry.position_bytes, position);
    out[k] = slot_values[k];
  }
}

template <unsigned W>
Status queue(const Parts& parts, std::uint32_t tensors, std::uint32_t tiles,
             std::uint64_t max_changed, std::uint64_t scan, PositionCoding coding,
             std::byte* positions, std::byte* values, cudaStream_t stream) {
  const unsigned blocks = (tiles + kWarps - 1) / kWarps;
  if (tiles != 0) {
    diff_tiles<W><<<blocks, kWarps * 32, 0, stream>>>(parts, tiles, max_changed);
    DRIFTLESS_RETURN_IF_ERROR(check_launch("diff_tiles"));
    std::size_t bytes = scan;
    DRIFTLESS_RETURN_IF_ERROR(check(
        cub::DeviceScan::ExclusiveScan(
            parts.scan, bytes,
            thrust::make_transform_iterator(thrust::counting_iterator<std::uint32_t>(0),
                                            ReadTile{parts.tiles}),
            parts.before, Join{}, Before{0, 0}, tiles, stream),
        "the scan over tiles"));
    if (coding == PositionCoding::kGaps) {
      widen_gaps<W><<<(tiles + 255) / 256, 256, 0, stream>>>(parts, tiles);
      DRIFTLESS_RETURN_IF_ERROR(check_launch("widen_gaps"));
    }
  }
  make_table<<<1, kTableThreads, 0, stream>>>(parts, tensors, tiles);
  DRIFTLESS_RETURN_IF_ERROR(check_launch("make_table"));
  if (tiles == 0) return {};
  if (coding == PositionCoding::kGaps) {
    emit<W, true><<<blocks, kWarps * 32, 0, stream>>>(parts, tiles, max_changed, positions, values);
  } else {
    emit<W, false>
        <<<blocks, kWarps * 32, 0, stream>>>(parts, tiles, max_changed, positions, values);
  }
  return check_launch("emit");
}

constexpr std::uint64_t kHugeUnits = std::uint64_t{1} << 31;

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
    return error(StatusCode::kInvalidArgument, "units of ", unit_bytes, " bytes cannot be compared");
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
    host.tensors[i] = {nullptr, nullptr, units[i], tile, 0};
    std::fill_n(host.tile_tensor + tile, own, i);
    tile += own;
    batch.huge_ = batch.huge_ || units[i] > kHugeUnits;
  }
  *host.summary = {};
  const Parts dev = carve_dev(batch.dev_, batch.tensors_, batch.tiles_, unit_bytes, max_changed,
                              batch.scan_bytes_, nullptr);
  DRIFTLESS_RETURN_IF_ERROR(
      check(cudaMemcpyAsync(dev.tile_tensor, host.tile_tensor, tiles * sizeof(std::uint32_t),
                            cudaMemcpyHostToDevice, native(stream)),
            "placing the table of tiles"));
  return batch;
}

std::uint64_t DiffBatch::max_position_bytes() const { return max_changed_ * (huge_ ? 8 : 4); }

Status DiffBatch::run(std::span<const Tensor> tensors, PositionCoding coding,
                      std::byte* positions_dev, std::byte* values_dev, Stream stream) {
  if (tensors.size() != tensors_) {
    return error(StatusCode::kInvalidArgument, "the batch was made for ", tensors_, " tensors, ",
                 tensors.size(), " were given");
  }
  const HostParts host = carve_host(host_, tensors_, tiles_, nullptr);
  const Parts dev =
      carve_dev(dev_, tensors_, tiles_, unit_bytes_, max_changed_, scan_bytes_, nullptr);
  for (std::uint32_t i = 0; i < tensors_; ++i) {
    host.tensors[i].old_dev = tensors[i].old_dev;
    host.tensors[i].new_dev = tensors[i].new_dev;
    const bool gaps = coding == PositionCoding::kGaps;
    host.tensors[i].wide = gaps ? 2 : host.tensors[i].units > kHugeUnits ? 8 : 4;
  }
  const cudaStream_t queue_on = native(stream);
  DRIFTLESS_RETURN_IF_ERROR(
      check(cudaMemcpyAsync(dev.tensors, host.tensors, tensors_ * sizeof(DevTensor),
                            cudaMemcpyHostToDevice, queue_on),
            "placing the table of tensors"));
  DRIFTLESS_RETURN_IF_ERROR(
      check(cudaMemsetAsync(dev.cursor, 0, sizeof(*dev.cursor), queue_on), "clearing a cursor"));
  const auto go = [&](auto queue_width) {
    return queue_width(dev, tensors_, tiles_, max_changed_, scan_bytes_, coding, positions_dev,
                       values_dev, queue_on);
  };
  switch (unit_bytes_) {
    case 1: DRIFTLESS_RETURN_IF_ERROR(go(queue<1>)); break;
    case 2: DRIFTLESS_RETURN_IF_ERROR(go(queue<2>)); break;
    case 4: DRIFTLESS_RETURN_IF_ERROR(go(queue<4>)); break;
    default: DRIFTLESS_RETURN_IF_ERROR(go(queue<8>)); break;
  }
  return check(cudaMemcpyAsync(host.summary, dev.summary,
                               sizeof(Summary) + tensors_ * sizeof(StreamEntry),
                               cudaMemcpyDeviceToHost, queue_on),
               "fetching the results of a comparison");
}

DiffBatch::Results DiffBatch::results() const {
  const HostParts host = carve_host(host_, tensors_, tiles_, nullptr);
  return {host.summary->changed, host.summary->position_bytes, {host.entries, tensors_}};
}

}  // namespace driftless::cuda
