// SPDX-License-Identifier: Apache-2.0
// Divides a batch of tensors into tiles, holds the tables of tensors and tiles, and compares both
// sides of all tiles in one pass. Private to diff.cu and capture.cu.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/launch.cuh"

namespace driftless::cuda {

inline constexpr std::uint32_t kTileBytes = 32768;  // of one side; offsets in a tile fit 16 bits
inline constexpr unsigned kWarps = 8;               // per block

struct DevTensor {
  const std::byte* old_dev;
  const std::byte* new_dev;
  std::uint64_t units;
  std::uint64_t origin;
  std::uint32_t first_tile;
  std::uint32_t position_bytes;  // lower bound
};

using Tile = CaptureBatch::Tile;

// Sums over the tiles before a tile.
struct Before {
  std::uint64_t changed;
  std::uint32_t filled_tile;  // 1 + the last tile with changes; 0: none
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

// Pointers to everything in device memory; on the host, to the tables of tensors and tiles and to
// the results.
struct Parts {
  DevTensor* tensors = nullptr;
  std::uint32_t* tile_tensor = nullptr;
  Tile* tiles = nullptr;
  Before* before = nullptr;
  std::uint32_t* wide = nullptr;         // per tensor: bytes of its widest gap, if above 2
  unsigned long long* cursor = nullptr;  // both this and `wide` are zero between runs
  std::byte* scan = nullptr;
  std::uint16_t* slot_offsets = nullptr;
  std::byte* slot_values = nullptr;
  bool slots_for_all = false;  // also for a tile that changed completely
  Summary* summary = nullptr;  // followed by the entries, so that one copy returns both
  StreamEntry* entries = nullptr;
};

// Leaves 80 registers to a thread; 128 if the new side is converted.
constexpr unsigned blocks_per_processor(ValueCast cast) { return cast == ValueCast::kNone ? 3 : 2; }
inline constexpr unsigned kBatch = 4;  // 16-byte groups per lane and side in flight
// The most changes that a warp collects of a tile before it treats the tile as dense; one batch
// fits.
constexpr unsigned list_units(unsigned unit_bytes) { return kTileBytes / unit_bytes / 8; }

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

// A unit of the new side, before its conversion.
template <unsigned W, ValueCast C>
__device__ __forceinline__ Unit<W> new_unit(const std::byte* new_dev, std::uint32_t at) {
  if constexpr (C == ValueCast::kNone) {
    return reinterpret_cast<const Unit<W>*>(new_dev)[at];
  } else {
    static_assert(W == 2 && (C == ValueCast::kF32ToBF16 || C == ValueCast::kF32ToF16));
    const std::uint32_t bits = reinterpret_cast<const std::uint32_t*>(new_dev)[at];
    return C == ValueCast::kF32ToBF16 ? bf16_of_f32(bits) : f16_of_f32(bits);
  }
}
// Whether the unit of the new side is a NaN that the conversion narrows.
template <ValueCast C>
__device__ __forceinline__ bool is_new_nan(const std::byte* new_dev, std::uint32_t at) {
  return C != ValueCast::kNone && is_nan_f32(reinterpret_cast<const std::uint32_t*>(new_dev)[at]);
}
template <ValueCast C>
__device__ __forceinline__ std::uint32_t narrowed(std::uint32_t first, std::uint32_t second) {
  if constexpr (C == ValueCast::kF32ToBF16) {
    return bf16_of_f32(first) | std::uint32_t{bf16_of_f32(second)} << 16;
  } else {
    return f16_of_f32(first) | std::uint32_t{f16_of_f32(second)} << 16;
  }
}
// 16 bytes of the new side; 32 if values are narrowed.
template <ValueCast C>
struct NewGroup {
  uint4 words[2];
  __device__ __forceinline__ void load(const std::byte* new_dev, unsigned group) {
    const uint4* const from = reinterpret_cast<const uint4*>(new_dev) + 2 * group;
    words[0] = __ldg(from);
    words[1] = __ldg(from + 1);
  }
  __device__ __forceinline__ uint4 units() const {
    return {narrowed<C>(words[0].x, words[0].y), narrowed<C>(words[0].z, words[0].w),
            narrowed<C>(words[1].x, words[1].y), narrowed<C>(words[1].z, words[1].w)};
  }
  // Bit i: unit i is a NaN, which always differs.
  __device__ __forceinline__ unsigned nans() const {
    const std::uint32_t bits[8] = {words[0].x, words[0].y, words[0].z, words[0].w,
                                   words[1].x, words[1].y, words[1].z, words[1].w};
    unsigned mask = 0;
#pragma unroll
    for (unsigned i = 0; i < 8; ++i) mask |= is_nan_f32(bits[i]) ? 1U << i : 0U;
    return mask;
  }
};
template <>
struct NewGroup<ValueCast::kNone> {
  uint4 words;
  __device__ __forceinline__ void load(const std::byte* new_dev, unsigned group) {
    // Keeps it in the L1 cache, because values are read from there later.
    words = __ldg(reinterpret_cast<const uint4*>(new_dev) + group);
  }
  __device__ __forceinline__ uint4 units() const { return words; }
  __device__ __forceinline__ unsigned nans() const { return 0; }
};

// The lanes' view of a tile, batch by batch: group j of lane l in batch b is group (b * kBatch + j)
// * 32 + l of the tile, of 16 bytes. A lane's mask has one bit for each unit of its groups.
template <unsigned W, ValueCast C>
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
  std::uint32_t whole;  // number of batches that can be loaded completely, 16 bytes at a time

  __device__ TileView(const std::byte* before, const std::byte* after, std::uint32_t count)
      : old_dev(before), new_dev(after), units(count), whole(0) {
    const bool aligned =
        ((reinterpret_cast<std::uintptr_t>(before) | reinterpret_cast<std::uintptr_t>(after)) %
         16) == 0;
    if (aligned) whole = count / kBatchUnits;
  }
  __device__ unsigned batches() const { return (units + kBatchUnits - 1) / kBatchUnits; }

  struct Loaded {
    uint4 old_groups[kBatch];
    NewGroup<C> new_groups[kBatch];

    __device__ __forceinline__ Mask mask() const {
      Mask mask = 0;
#pragma unroll
      for (unsigned j = 0; j < kBatch; ++j) {
        mask |= static_cast<Mask>(differing<W>(old_groups[j], new_groups[j].units()) |
                                  new_groups[j].nans())
                << (j * kGroupUnits);
      }
      return mask;
    }
  };
  __device__ __forceinline__ void load(unsigned batch, unsigned lane, Loaded& out) const {
    const uint4* const a = reinterpret_cast<const uint4*>(old_dev) + batch * kBatch * 32 + lane;
#pragma unroll
    for (unsigned j = 0; j < kBatch; ++j) {
      out.old_groups[j] = load_streaming(a + j * 32);
      out.new_groups[j].load(new_dev, (batch * kBatch + j) * 32 + lane);
    }
  }
  // The mask of a batch that is not whole: the last one, or any if a side is not at a multiple of
  // 16.
  __device__ Mask slow_mask(unsigned batch, unsigned lane) const {
    const auto* const a = reinterpret_cast<const Unit<W>*>(old_dev);
    Mask mask = 0;
#pragma unroll 1
    for (unsigned j = 0; j < kBatch; ++j) {
      const std::uint32_t first = ((batch * kBatch + j) * 32 + lane) * kGroupUnits;
#pragma unroll
      for (unsigned i = 0; i < kGroupUnits; ++i) {
        if (first + i < units && (a[first + i] != new_unit<W, C>(new_dev, first + i) ||
                                  is_new_nan<C>(new_dev, first + i))) {
          mask |= Mask{1} << (j * kGroupUnits + i);
        }
      }
    }
    return mask;
  }
  // Calls use(batch, mask) for all batches, while the loads of the next batch are in flight.
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

// Appends the batch's offsets to `list` after the first `filled`, in order; returns their number.
// Writes nothing past `room`.
template <unsigned W>
__device__ __forceinline__ unsigned collect(typename TileView<W, ValueCast::kNone>::Mask mask,
                                            unsigned batch, unsigned lane, unsigned filled,
                                            unsigned room, std::uint16_t* list) {
  using View = TileView<W, ValueCast::kNone>;
  constexpr unsigned kGroupUnits = View::kGroupUnits;
  static_assert(kBatch == 4);
  const auto group_count = [&](unsigned j) {
    return count_bits(
        static_cast<typename View::Mask>((mask >> (j * kGroupUnits)) & View::kGroupMask));
  };
  // Two counts of up to 512 in a word: groups 0 and 1, and groups 2 and 3.
  const unsigned lane01 = group_count(0) | (group_count(1) << 16),
                 lane23 = group_count(2) | (group_count(3) << 16);
  unsigned sum01 = lane01, sum23 = lane23;
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
  // The index of the lane's next offset of each group.
  const unsigned in01 = (all01 & 0xffffU) + (all01 >> 16);
  unsigned next01 = sum01 - lane01 + (all01 << 16);
  unsigned next23 = sum23 - lane23 + (all23 << 16) + in01 * 0x10001U;
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

// The changes that a warp has found: offsets in the tile, and the new values there.
template <unsigned W>
struct List {
  std::uint16_t offsets[list_units(W)];
  Unit<W> values[list_units(W)];

  // Stores entries [from, to), as far as there is room.
  template <ValueCast C>
  __device__ __forceinline__ void pick_up_values(const std::byte* new_dev, unsigned from,
                                                 unsigned to, unsigned lane) {
    const unsigned end = to < list_units(W) ? to : list_units(W);
    for (unsigned k = from + lane; k < end; k += 32)
      values[k] = new_unit<W, C>(new_dev, offsets[k]);
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

// For more changes than a list holds: compares again, and writes batch by batch.
template <unsigned W, ValueCast C>
__device__ __forceinline__ void write_dense(const Parts& parts, const TileView<W, C>& view,
                                            List<W>& list, std::uint64_t base, unsigned lane,
                                            Tile& tile) {
  unsigned done = 0;
  view.each_batch(lane, [&](unsigned batch, typename TileView<W, C>::Mask mask) {
    __syncwarp();
    const unsigned found = collect<W>(mask, batch, lane, 0, list_units(W), list.offsets);
    __syncwarp();
    list.template pick_up_values<C>(view.new_dev, 0, found, lane);
    __syncwarp();
    list.write(parts, found, base + done, lane);
    if (found != 0) {
      if (done == 0) tile.first = list.offsets[0];
      tile.last = list.offsets[found - 1];
    }
    done += found;
  });
}

template <unsigned W, ValueCast C>
__global__ void __launch_bounds__(kWarps * 32, blocks_per_processor(C))
    diff_tiles(Parts parts, std::uint32_t tiles, std::uint64_t max_changed) {
  extern __shared__ std::byte shared[];
  constexpr std::uint32_t kTileUnits = kTileBytes / W;
  using View = TileView<W, C>;
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const std::uint32_t number = blockIdx.x * kWarps + warp;
  if (number >= tiles) return;
  List<W>& list = reinterpret_cast<List<W>*>(shared)[warp];
  const DevTensor tensor = parts.tensors[parts.tile_tensor[number]];
  const std::uint64_t first_unit = std::uint64_t{number - tensor.first_tile} * kTileUnits;
  const std::uint64_t left = tensor.units - first_unit;
  const View view(tensor.old_dev + first_unit * W, tensor.new_dev + first_unit * source_bytes(C, W),
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
    list.template pick_up_values<C>(view.new_dev, count, count + found, lane);
    count += found;
  });
  Tile tile{0, count, 0, static_cast<std::uint16_t>(view.units - 1)};
  // If the whole tile changed, the second kernel reads the tensor itself.
  if (count != 0 && (count != view.units || parts.slots_for_all)) {
    unsigned long long base = 0;
    if (lane == 0) base = atomicAdd(parts.cursor, count);
    tile.base = __shfl_sync(~0U, base, 0);
    __syncwarp();
    if (tile.base + count > max_changed) {
      // Too many changes: they are only counted.
    } else if (listed && count <= list_units(W)) {
      list.write(parts, count, tile.base, lane);
      tile.first = list.offsets[0];
      tile.last = list.offsets[count - 1];
    } else {
      write_dense<W, C>(parts, view, list, tile.base, lane, tile);
    }
  }
  if (lane == 0) parts.tiles[number] = tile;
}

// The number of tiles of the tensors.
[[nodiscard]] std::uint64_t tiles_of(std::span<const std::uint64_t> units, unsigned unit_bytes);
// Fills the tables of tensors (except their addresses) and tiles in host memory.
void fill_tables(std::span<const std::uint64_t> units, unsigned unit_bytes, const Parts& host);
// Queues diff_tiles() for a width and a conversion; in diff.cu.
[[nodiscard]] Status queue_diff_tiles(const Parts& parts, std::uint32_t tiles, unsigned unit_bytes,
                                      ValueCast cast, std::uint64_t max_changed,
                                      cudaStream_t stream);

}  // namespace driftless::cuda
