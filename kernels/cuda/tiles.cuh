// SPDX-License-Identifier: Apache-2.0
// How a batch of tensors is cut into tiles, and what is known of them. Private to diff.cu.
#pragma once

#include <cstdint>

#include "core/memory_kind.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/operations.h"

namespace driftless::cuda {

inline constexpr std::uint32_t kTileBytes = 32768;  // of one side; offsets in a tile fit 16 bits
inline constexpr unsigned kWarps = 8;               // per block

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

// Everything in device memory; on the host the tables of tensors and tiles, and the results.
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

}  // namespace driftless::cuda
