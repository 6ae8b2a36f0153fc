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
#include <cub/block/block_scan.cuh>
#include <cub/device/device_scan.cuh>

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/operations.h"

namespace driftless::cuda {
namespace {

constexpr std::uint32_t kTileBytes = 32768;  // of one side; offsets in a tile fit 16 bits
constexpr unsigned kWarps = 8;               // per block
constexpr unsigned kBlocksPerProcessor = 3;  // leaves 80 registers to a thread
constexpr unsigned kBatch = 4;               // 16-byte groups per lane and side in flight
// What a warp collects of a tile before it is called dense; a batch fits.
constexpr unsigned list_units(unsigned unit_bytes) { return kTileBytes / unit_bytes / 8; }

struct DevTensor {
  const std::byte* old_dev;
  const std::byte* new_dev;
  std::uint64_t units;
  std::uint64_t origin;
  std::uint32_t first_tile;
  std::uint32_t position_bytes;  // at least
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
  std::uint32_t* wide = nullptr;         // per tensor: bytes that a gap needs where they are many
  unsigned long long* cursor = nullptr;  // this and `wide` are zero between runs
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

__device__ __forceinline__ unsigned count_bits(std::uint32_t x) { return __popc(x); }
__device__ __forceinline__ unsigned count_bits(std::uint64_t x) { return __popcll(x); }
__device__ __forceinline__ unsigned lowest_bit(std::uint32_t x) { return __ffs(x) - 1; }
__device__ __forceinline__ unsigned lowest_bit(std::uint64_t x) { return __ffsll(x) - 1; }

// A tile as the lanes see it, batch by batch: group j of lane l in batch b is group
// (b * kBatch + j) * 32 + l of the tile, 16 bytes. A lane's mask has a bit per unit of its groups.
template <unsigned W>
struct TileView {
  static constexpr unsigned kGroupUnits = 16 / W;
  static constexpr unsigned kBatchUnits = kBatch * 32 * kGroupUnits;
  using Mask = std::conditional_t<W == 1, std::uint64_t, std::uint32_t>;
  static constexpr Mask kGroupMask = (Mask{1} << kGroupUnits) - 1;
  static constexpr Mask kAllBits = static_cast<Mask>(~Mask{0}) >>
                                   (8 * sizeof(Mask) - kBatch * kGroupUnits);

  const std::byte* old_dev;
  const std::byte* new_dev;
  std::uint32_t units;
  std::uint32_t whole;  // batches that can be loaded 16 bytes at a time, all of them

  __device__ TileView(const std::byte* before, const std::byte* after, std::uint32_t count)
      : old_dev(before), new_dev(after), units(count), whole(0) {
    const bool aligned =
        ((reinterpret_cast<std::uintptr_t>(before) | reinterpret_cast<std::uintptr_t>(after)) %
         16) == 0;
    if (aligned) whole = count / kBatchUnits;
  }
  __device__ unsigned batches() const { return (units + kBatchUnits - 1) / kBatchUnits; }

  struct Loaded {
    uint4 old_groups[kBatch], new_groups[kBatch];

    __device__ __forceinline__ Mask mask() const {
      Mask mask = 0;
#pragma unroll
      for (unsigned j = 0; j < kBatch; ++j) {
        mask |= static_cast<Mask>(differing<W>(old_groups[j], new_groups[j])) << (j * kGroupUnits);
      }
      return mask;
    }
  };
  __device__ __forceinline__ void load(unsigned batch, unsigned lane, Loaded& out) const {
    const uint4* const a = reinterpret_cast<const uint4*>(old_dev) + batch * kBatch * 32 + lane;
    const uint4* const b = reinterpret_cast<const uint4*>(new_dev) + batch * kBatch * 32 + lane;
#pragma unroll
    for (unsigned j = 0; j < kBatch; ++j) {
      out.old_groups[j] = load_streaming(a + j * 32);
      out.new_groups[j] = __ldg(b + j * 32);  // the L1 keeps it: values are picked up from there
    }
  }
  // Of a batch that is not whole: the last, or any where a side does not lie at a multiple of 16.
  __device__ Mask slow_mask(unsigned batch, unsigned lane) const {
    const auto* const a = reinterpret_cast<const Unit<W>*>(old_dev);
    const auto* const b = reinterpret_cast<const Unit<W>*>(new_dev);
    Mask mask = 0;
#pragma unroll 1
    for (unsigned j = 0; j < kBatch; ++j) {
      const std::uint32_t first = ((batch * kBatch + j) * 32 + lane) * kGroupUnits;
#pragma unroll
      for (unsigned i = 0; i < kGroupUnits; ++i) {
        if (first + i < units && a[first + i] != b[first + i]) {
          mask |= Mask{1} << (j * kGroupUnits + i);
        }
      }
    }
    return mask;
  }
  // Calls use(batch, mask) for all of them. The next batch's loads are under way meanwhile.
  template <typename Use>
  __device__ __forceinline__ void each_batch(unsigned lane, const Use& use) const {
    if (whole != 0) {
      Loaded loaded;
      load(0, lane, loaded);
      for (unsigned batch = 0; batch < whole; ++batch) {
        const Mask mask = loaded.mask();
        if (batch + 1 < whole) load(batch + 1, lane, loaded);
        use(batch, mask);
      }
    }
    for (unsigned batch = whole; batch < batches(); ++batch) use(batch, slow_mask(batch, lane));
  }
};

// Appends the batch's offsets to `list` behind the first `filled`, in order; returns how many there
// are. Writes nothing past `room`.
template <unsigned W>
__device__ __forceinline__ unsigned collect(typename TileView<W>::Mask mask, unsigned batch,
                                            unsigned lane, unsigned filled, unsigned room,
                                            std::uint16_t* list) {
  using View = TileView<W>;
  constexpr unsigned kGroupUnits = View::kGroupUnits;
  static_assert(kBatch == 4);
  const auto own = [&](unsigned j) {
    return count_bits(
        static_cast<typename View::Mask>((mask >> (j * kGroupUnits)) & View::kGroupMask));
  };
  // Two counts of up to 512 in a word: groups 0 and 1, groups 2 and 3.
  const unsigned own01 = own(0) | (own(1) << 16), own23 = own(2) | (own(3) << 16);
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
  // Where the lane's next offset of each group goes.
  const unsigned in01 = (all01 & 0xffffU) + (all01 >> 16);
  unsigned next01 = sum01 - own01 + (all01 << 16);
  unsigned next23 = sum23 - own23 + (all23 << 16) + in01 * 0x10001U;
  const unsigned first = (batch * kBatch * 32 + lane) * kGroupUnits;
  while (mask != 0) {
    const unsigned bit = lowest_bit(mask);
    mask &= mask - 1;
    const unsigned group = bit / kGroupUnits;
    const unsigned shift = group % 2 * 16;
    const unsigned at = filled + (((group < 2 ? next01 : next23) >> shift) & 0xffffU);
    next01 += group < 2 ? 1U << shift : 0;
    next23 += group < 2 ? 0 : 1U << shift;
    const unsigned offset = first + group * 31 * kGroupUnits + bit;
    if (at < room) list[at] = static_cast<std::uint16_t>(offset);
  }
  return in01 + (all23 & 0xffffU) + (all23 >> 16);
}

// What a warp has found: offsets in the tile, and the new values there.
template <unsigned W>
struct List {
  std::uint16_t offsets[list_units(W)];
  Unit<W> values[list_units(W)];

  // Of entries [from, to), as far as there is room.
  __device__ __forceinline__ void pick_up_values(const std::byte* new_dev, unsigned from,
                                                 unsigned to, unsigned lane) {
    const auto* const units = reinterpret_cast<const Unit<W>*>(new_dev);
    const unsigned end = to < list_units(W) ? to : list_units(W);
    for (unsigned k = from + lane; k < end; k += 32) values[k] = units[offsets[k]];
  }
  __device__ __forceinline__ void write(const Parts& parts, unsigned count, std::uint64_t base,
                                        unsigned lane) const {
    auto* const slot_values = reinterpret_cast<Unit<W>*>(parts.slot_values) + base;
    std::uint16_t* const slot_offsets = parts.slot_offsets + base;
#pragma unroll 4
    for (unsigned k = lane; k < count; k += 32) slot_offsets[k] = offsets[k];
#pragma unroll 4
    for (unsigned k = lane; k < count; k += 32) slot_values[k] = values[k];
  }
};

// More changes than a list holds: looks again, and writes batch by batch.
template <unsigned W>
__device__ __forceinline__ void write_dense(const Parts& parts, const TileView<W>& view,
                                            List<W>& list, std::uint64_t base, unsigned lane,
                                            Tile& tile) {
  unsigned done = 0;
  view.each_batch(lane, [&](unsigned batch, typename TileView<W>::Mask mask) {
    __syncwarp();
    const unsigned found = collect<W>(mask, batch, lane, 0, list_units(W), list.offsets);
    __syncwarp();
    list.pick_up_values(view.new_dev, 0, found, lane);
    __syncwarp();
    list.write(parts, found, base + done, lane);
    if (found != 0) {
      if (done == 0) tile.first = list.offsets[0];
      tile.last = list.offsets[found - 1];
    }
    done += found;
  });
}

template <unsigned W>
__global__ void __launch_bounds__(kWarps * 32, kBlocksPerProcessor)
    diff_tiles(Parts parts, std::uint32_t tiles, std::uint64_t max_changed) {
  extern __shared__ std::byte shared[];
  constexpr std::uint32_t kTileUnits = kTileBytes / W;
  using View = TileView<W>;
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const std::uint32_t number = blockIdx.x * kWarps + warp;
  if (number >= tiles) return;
  List<W>& list = reinterpret_cast<List<W>*>(shared)[warp];
  const DevTensor tensor = parts.tensors[parts.tile_tensor[number]];
  const std::uint64_t first_unit = std::uint64_t{number - tensor.first_tile} * kTileUnits;
  const std::uint64_t left = tensor.units - first_unit;
  const View view(tensor.old_dev + first_unit * W, tensor.new_dev + first_unit * W,
                  left < kTileUnits ? static_cast<std::uint32_t>(left) : kTileUnits);
  unsigned count = 0;
  bool listed = true;
  view.each_batch(lane, [&](unsigned batch, typename View::Mask mask) {
    if (!__any_sync(~0U, mask != 0)) return;
    if (__all_sync(~0U, mask == View::kAllBits)) {
      count += View::kBatchUnits;
      listed = false;
      return;
    }
    const unsigned found = collect<W>(mask, batch, lane, count, list_units(W), list.offsets);
    __syncwarp();
    list.pick_up_values(view.new_dev, count, count + found, lane);
    count += found;
  });
  Tile tile{0, count, 0, static_cast<std::uint16_t>(view.units - 1)};
  // Where all of it changed, the second kernel reads the tensor itself.
  if (count != 0 && count != view.units) {
    unsigned long long base = 0;
    if (lane == 0) base = atomicAdd(parts.cursor, count);
    tile.base = __shfl_sync(~0U, base, 0);
    __syncwarp();
    if (tile.base + count > max_changed) {
      // Too many: they are counted, and nothing else.
    } else if (listed && count <= list_units(W)) {
      list.write(parts, count, tile.base, lane);
      tile.first = list.offsets[0];
      tile.last = list.offsets[count - 1];
    } else {
      write_dense<W>(parts, view, list, tile.base, lane, tile);
    }
  }
  if (lane == 0) parts.tiles[number] = tile;
}

// The gap from the last change before the tile, in the same tensor, to the tile's first.
template <unsigned W>
__device__ __forceinline__ std::uint64_t gap_before(const Parts& parts, std::uint32_t tile,
                                                    const Tile& self, const DevTensor& tensor,
                                                    const Before& before) {
  constexpr std::uint64_t kTileUnits = kTileBytes / W;
  const std::uint64_t here = (tile - tensor.first_tile) * kTileUnits + self.first;
  if (before.filled_tile <= tensor.first_tile) return tensor.origin + here;
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
  if (gap > 0xffffU) atomicMax(&parts.wide[number], gap > 0xffffffffULL ? 8U : 4U);
}

constexpr unsigned kTableThreads = 1024;

// One block: the tensors' places in the streams.
__global__ void __launch_bounds__(kTableThreads)
    make_table(Parts parts, std::uint32_t tensors, std::uint32_t tiles) {
  using Scan = cub::BlockScan<std::uint64_t, kTableThreads>;
  __shared__ typename Scan::TempStorage storage;
  const Before end =
      tiles == 0 ? Before{0, 0} : Join{}(parts.before[tiles - 1], ReadTile{parts.tiles}(tiles - 1));
  std::uint64_t position = 0;
  for (std::uint32_t first = 0; first < tensors; first += kTableThreads) {
    const std::uint32_t i = first + threadIdx.x;
    StreamEntry entry{};
    if (i < tensors) {
      const auto before = [&](std::uint32_t tile) {
        return tile == tiles ? end.changed : parts.before[tile].changed;
      };
      entry.value_begin = before(parts.tensors[i].first_tile);
      entry.count =
          before(i + 1 < tensors ? parts.tensors[i + 1].first_tile : tiles) - entry.value_begin;
      entry.position_bytes = max(parts.tensors[i].position_bytes, parts.wide[i]);
      parts.wide[i] = 0;
    }
    std::uint64_t offset = 0, sum = 0;
    Scan(storage).ExclusiveSum(entry.count * entry.position_bytes, offset, sum);
    entry.position_begin = position + offset;
    if (i < tensors) parts.entries[i] = entry;
    position += sum;
    __syncthreads();
  }
  if (threadIdx.x != 0) return;
  *parts.summary = {end.changed, position};
  *parts.cursor = 0;
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

constexpr unsigned kEmitTiles = 32;  // per block
constexpr unsigned kEmitWarps = 8;

// Where a tile's results are, and where they belong.
template <unsigned W>
struct Move {
  const std::uint16_t* offsets;  // null: all of the tile changed, and it has no slots
  const Unit<W>* from;
  Unit<W>* to;
  std::byte* positions;
  std::uint64_t first;  // its first position, or the gap before it
  std::uint32_t position_bytes;
  std::uint32_t count;
};

template <unsigned W, bool Gaps>
__device__ __forceinline__ Move<W> plan_move(const Parts& parts, std::uint32_t number,
                                             std::byte* positions, std::byte* values) {
  const Tile tile = parts.tiles[number];
  const Before before = parts.before[number];
  const std::uint32_t tensor_number = parts.tile_tensor[number];
  Move<W> move{};
  move.count = tile.count;
  if (tile.count == 0) return move;
  const DevTensor tensor = parts.tensors[tensor_number];
  const StreamEntry entry = parts.entries[tensor_number];
  const std::uint64_t first_unit = std::uint64_t{number - tensor.first_tile} * (kTileBytes / W);
  move.offsets = parts.slot_offsets + tile.base;
  move.from = reinterpret_cast<const Unit<W>*>(parts.slot_values) + tile.base;
  if (tile.count == tile.last + 1U) {
    move.offsets = nullptr;
    move.from = reinterpret_cast<const Unit<W>*>(tensor.new_dev) + first_unit;
  }
  move.to = reinterpret_cast<Unit<W>*>(values) + before.changed;
  move.positions = positions + entry.position_begin +
                   (before.changed - entry.value_begin) * entry.position_bytes;
  move.first =
      Gaps ? gap_before<W>(parts, number, tile, tensor, before) : tensor.origin + first_unit;
  move.position_bytes = entry.position_bytes;
  return move;
}

// A warp moves a tile's results, so many of a lane's under way at a time.
template <unsigned W, bool Gaps>
__device__ __forceinline__ void carry_out(const Move<W>& move, unsigned lane) {
  constexpr unsigned kTogether = 6;
  for (std::uint32_t first = lane; first < move.count; first += 32 * kTogether) {
    std::uint32_t offset[kTogether], previous[kTogether];
    Unit<W> value[kTogether];
#pragma unroll
    for (unsigned j = 0; j < kTogether; ++j) {
      const std::uint32_t k = first + 32 * j;
      if (k >= move.count) continue;
      offset[j] = move.offsets == nullptr ? k : move.offsets[k];
      if (Gaps) previous[j] = move.offsets == nullptr || k == 0 ? k - 1 : move.offsets[k - 1];
      value[j] = move.from[k];
    }
#pragma unroll
    for (unsigned j = 0; j < kTogether; ++j) {
      const std::uint32_t k = first + 32 * j;
      if (k >= move.count) continue;
      std::uint64_t position = move.first + offset[j];
      if (Gaps) position = k == 0 ? move.first : offset[j] - previous[j] - 1;
      store_position(move.positions + std::uint64_t{k} * move.position_bytes, move.position_bytes,
                     position);
      move.to[k] = value[j];
    }
  }
}

template <unsigned W, bool Gaps>
__global__ void __launch_bounds__(kEmitWarps * 32)
    emit(Parts parts, std::uint32_t tiles, std::uint64_t max_changed, std::byte* positions,
         std::byte* values) {
  __shared__ Move<W> moves[kEmitTiles];
  if (parts.summary->changed > max_changed) return;
  const std::uint32_t first = blockIdx.x * kEmitTiles;
  if (threadIdx.x < kEmitTiles && first + threadIdx.x < tiles) {
    moves[threadIdx.x] = plan_move<W, Gaps>(parts, first + threadIdx.x, positions, values);
  }
  __syncthreads();
  for (unsigned i = threadIdx.x / 32; i < kEmitTiles && first + i < tiles; i += kEmitWarps) {
    carry_out<W, Gaps>(moves[i], threadIdx.x % 32);
  }
}

template <unsigned W, bool Gaps>
Status queue_emit(const Parts& parts, std::uint32_t tiles, std::uint64_t max_changed,
                  std::byte* positions, std::byte* values, cudaStream_t stream) {
  emit<W, Gaps><<<(tiles + kEmitTiles - 1) / kEmitTiles, kEmitWarps * 32, 0, stream>>>(
      parts, tiles, max_changed, positions, values);
  return check_launch("emit");
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
             std::byte* positions, std::byte* values, cudaStream_t stream) {
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
      widen_gaps<W><<<(tiles + 255) / 256, 256, 0, stream>>>(parts, tiles);
      DRIFTLESS_RETURN_IF_ERROR(check_launch("widen_gaps"));
    }
  }
  make_table<<<1, kTableThreads, 0, stream>>>(parts, tensors, tiles);
  DRIFTLESS_RETURN_IF_ERROR(check_launch("make_table"));
  if (tiles == 0) return {};
  return coding == PositionCoding::kGaps
             ? queue_emit<W, true>(parts, tiles, max_changed, positions, values, stream)
             : queue_emit<W, false>(parts, tiles, max_changed, positions, values, stream);
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
                       values_dev, queue_on);
  };
  switch (unit_bytes_) {
    case 1: DRIFTLESS_RETURN_IF_ERROR(go(queue<1>)); break;
    case 2: DRIFTLESS_RETURN_IF_ERROR(go(queue<2>)); break;
    case 4: DRIFTLESS_RETURN_IF_ERROR(go(queue<4>)); break;
    default: DRIFTLESS_RETURN_IF_ERROR(go(queue<8>)); break;
  }
  return check(
      cudaMemcpyAsync(host.summary, dev.summary, sizeof(Summary) + tensors_ * sizeof(StreamEntry),
                      cudaMemcpyDeviceToHost, queue_on),
      "fetching the results of a comparison");
}

DiffBatch::Results DiffBatch::results() const {
  const HostParts host = carve_host(host_, tensors_, tiles_, nullptr);
  return {host.summary->changed, host.summary->position_bytes, {host.entries, tensors_}};
}

}  // namespace driftless::cuda
