// SPDX-License-Identifier: Apache-2.0
// Device structures for blocks of `compact`. A warp sums the hazards of a tile in groups of units;
// one thread encodes the tile, and a few lanes decode it.
#pragma once

#include "core/memory_kind.h"
#include "kernels/compact_model.h"
#include "kernels/cuda/compact.h"
#include "kernels/cuda/launch.cuh"

namespace driftless::cuda {

inline constexpr std::uint32_t kHazardGroup = 32;  // units
// The number of sums of a tile: one for each group, and the total; a multiple of 4.
[[nodiscard]] constexpr std::uint32_t tile_sums(unsigned unit_bytes) {
  return compact_tile_units(unit_bytes) / kHazardGroup + 4;
}
template <typename Unit>
inline constexpr std::uint32_t kTileSums = tile_sums(sizeof(Unit));
inline constexpr unsigned kHazardWarps = 8, kTileThreads = 128;  // per block
inline constexpr std::uint32_t kNoTile = ~std::uint32_t{0};

struct TileWork {
  std::uint64_t first;         // unit of the block
  std::uint64_t change_begin;  // index of its first change in the block's changes
  std::uint64_t stream_begin;
  std::uint32_t block, units, changes, stream_bytes;
};
struct DeviceTable {
  std::uint16_t hazards[kCompactClasses];
  std::uint16_t step_rows[kCompactClasses];
  std::uint32_t first_steps;
};
struct CompactParts {
  CompactBlock* blocks = nullptr;
  TileWork* tiles = nullptr;
  DeviceTable* tables = nullptr;
  CompactSteps* steps = nullptr;
  std::uint32_t* bad = nullptr;   // the first tile that cannot be coded
  std::uint32_t* sums = nullptr;  // tile_sums() per tile, on the device
};

CompactParts carve_compact(Carver& carver, const CompactShape& shape, MemoryKind kind);
// Fills the host's tables.
[[nodiscard]] Status fill_blocks(const CompactFields& fields, std::span<const CompactBlock> blocks,
                                 const CompactParts& host);
[[nodiscard]] Status fill_tables(const CompactFields& fields, std::span<const CompactTable> tables,
                                 const CompactShape& shape, const CompactParts& host);
[[nodiscard]] std::uint64_t tiles_of(const CompactFields& fields,
                                     std::span<const CompactBlock> blocks);
[[nodiscard]] bool any_cut(std::span<const CompactBlock> blocks);
// Queues summing the hazards of all tiles.
[[nodiscard]] Status sum_hazards(const CompactParts& dev, const CompactShape& shape, bool cut,
                                 cudaStream_t stream);
[[nodiscard]] inline Status upload(void* to, const void* from, std::uint64_t bytes,
                                   cudaStream_t stream) {
  if (bytes == 0) return {};
  return check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream), "compact: upload");
}

// The units of a block, from a given unit on.
template <typename Unit, bool Cut>
struct TileUnits {
  const Unit* data;
  const BlockPlace* place;
  std::uint64_t first;

  __device__ TileUnits(const CompactBlock& block, std::uint64_t from)
      : data(reinterpret_cast<const Unit*>(block.old_dev)), place(&block.place), first(from) {
    if (!Cut || place->dims == 0) data += place->first + from;
  }
  __device__ __forceinline__ std::uint32_t operator[](std::uint32_t at) const {
    if (Cut && place->dims != 0) return data[place->at(first + at)];
    return data[at];
  }
  // Units in 16 bytes.
  static constexpr std::uint32_t kPack = 16 / sizeof(Unit);
  struct Pack {
    std::uint32_t word[4];

    [[nodiscard]] __device__ __forceinline__ std::uint32_t unit(unsigned i) const {
      return static_cast<Unit>(word[i * sizeof(Unit) / 4] >> (8 * (i * sizeof(Unit) % 4)));
    }
    // (unit >> shift) & mask; mask has no bit past the unit.
    [[nodiscard]] __device__ __forceinline__ std::uint32_t bits(unsigned i, unsigned shift,
                                                                unsigned mask) const {
      return (word[i * sizeof(Unit) / 4] >> (8 * (i * sizeof(Unit) % 4) + shift)) & mask;
    }
  };
  // Loads kPack units; units from `end` on are zero.
  __device__ __forceinline__ Pack pack(std::uint32_t at, std::uint32_t end) const {
    const bool plain = !Cut || place->dims == 0;
    if (plain && at + kPack <= end && reinterpret_cast<std::uintptr_t>(data + at) % 16 == 0) {
      const uint4 words = *reinterpret_cast<const uint4*>(data + at);
      return {{words.x, words.y, words.z, words.w}};
    }
    Pack pack{};
#pragma unroll
    for (unsigned i = 0; i < kPack; ++i) {
      const std::uint32_t unit = at + i < end ? (*this)[at + i] : 0;
      pack.word[i * sizeof(Unit) / 4] |= unit << (8 * (i * sizeof(Unit) % 4));
    }
    return pack;
  }
};

static __constant__ compact::Axis kConstantAxis = compact::make_axis();
// Copies the axis to shared memory for all threads of the block. The lanes read different places,
// which constant memory would serve one by one.
__device__ __forceinline__ void share_axis(compact::Axis& axis) {
  static_assert(sizeof(compact::Axis) % 4 == 0);
  const auto* const from = reinterpret_cast<const std::uint32_t*>(&kConstantAxis);
  auto* const to = reinterpret_cast<std::uint32_t*>(&axis);
  for (unsigned i = threadIdx.x; i < sizeof(compact::Axis) / 4; i += blockDim.x) to[i] = from[i];
  __syncthreads();
}

// Calls code(Unit{}, Cut) for the fields' width.
template <typename Code>
auto with_tiles(const CompactFields& fields, bool cut, const Code& code) {
  return compact::with_unit(fields, [&]<typename Unit>(Unit unit) {
    return cut ? code(unit, std::true_type{}) : code(unit, std::false_type{});
  });
}

}  // namespace driftless::cuda
