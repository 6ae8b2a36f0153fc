// SPDX-License-Identifier: Apache-2.0
// Moves the results of the tiles into the streams of a bucket. Private to diff.cu.
#pragma once

#include <cstdint>
#include <cub/block/block_scan.cuh>

#include "kernels/cuda/diff_sweep.cuh"

namespace driftless::cuda {

// The kernels below are launched while the previous kernel still runs (launch_next() in diff.cu).
// Each first allows the next kernel to launch, then waits until all previous ones are done and
// their writes are visible.
__device__ __forceinline__ void wait_for_the_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// The gap from the last change before the tile, in the same tensor, to the tile's first change.
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
  wait_for_the_previous();
  const std::uint32_t tile = blockIdx.x * blockDim.x + threadIdx.x;
  if (tile >= tiles) return;
  const Tile self = parts.tiles[tile];
  if (self.count == 0) return;
  const std::uint32_t number = parts.tile_tensor[tile];
  const std::uint64_t gap =
      gap_before<W>(parts, tile, self, parts.tensors[number], parts.before[tile]);
  if (gap > 0xffffU) atomicMax(&parts.wide[number], gap > 0xffffffffULL ? 8U : 4U);
}

inline constexpr unsigned kTableThreads = 1024;

// In one block: computes the places of the tensors in the streams.
static __global__ void __launch_bounds__(kTableThreads)
    make_table(Parts parts, std::uint32_t tensors, std::uint32_t tiles) {
  using Scan = cub::BlockScan<std::uint64_t, kTableThreads>;
  __shared__ typename Scan::TempStorage storage;
  wait_for_the_previous();
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

// Positions may be at any multiple of 2 bytes.
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

inline constexpr unsigned kEmitTiles = 32;  // per block
inline constexpr unsigned kEmitWarps = 8;

// The source and the destination of a tile's results.
template <unsigned W>
struct Move {
  const std::uint16_t* offsets;  // null: the whole tile changed, and it has no slots
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

// A warp moves a tile's results; each lane keeps kTogether loads in flight.
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

// The first block copies the summary and the entries to the host; the others move the results to
// their places.
template <unsigned W, bool Gaps>
__global__ void __launch_bounds__(kEmitWarps * 32)
    emit(Parts parts, std::uint32_t tensors, std::uint32_t tiles, std::uint64_t max_changed,
         std::byte* positions, std::byte* values, std::uint64_t* results_host) {
  __shared__ Move<W> moves[kEmitTiles];
  wait_for_the_previous();
  if (blockIdx.x == 0) {
    const auto* const results = reinterpret_cast<const std::uint64_t*>(parts.summary);
    const std::uint32_t words = (sizeof(Summary) + tensors * sizeof(StreamEntry)) / 8;
    for (std::uint32_t i = threadIdx.x; i < words; i += blockDim.x) results_host[i] = results[i];
    return;
  }
  if (parts.summary->changed > max_changed) return;
  const std::uint32_t first = (blockIdx.x - 1) * kEmitTiles;
  if (threadIdx.x < kEmitTiles && first + threadIdx.x < tiles) {
    moves[threadIdx.x] = plan_move<W, Gaps>(parts, first + threadIdx.x, positions, values);
  }
  __syncthreads();
  for (unsigned i = threadIdx.x / 32; i < kEmitTiles && first + i < tiles; i += kEmitWarps) {
    carry_out<W, Gaps>(moves[i], threadIdx.x % 32);
  }
}

}  // namespace driftless::cuda
