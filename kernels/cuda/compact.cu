// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/compact.cuh"
#include "kernels/cuda/patch.cuh"

namespace driftless::cuda {
namespace {

// sums[g] = the sum of hazards of the tile's units before group g; the last entry is the total.
template <typename Unit, bool Cut>
__global__ void __launch_bounds__(kHazardWarps * 32)
    sum_tiles(CompactParts parts, CompactFields fields, std::uint32_t tiles) {
  __shared__ std::uint16_t tables[kHazardWarps][kCompactClasses];
  using Units = TileUnits<Unit, Cut>;
  constexpr unsigned kLanes = kHazardGroup / Units::kPack;  // lanes for a group
  const unsigned lane = threadIdx.x % 32;
  const std::uint32_t number = blockIdx.x * kHazardWarps + threadIdx.x / 32;
  if (number >= tiles) return;
  const TileWork tile = parts.tiles[number];
  const CompactBlock& block = parts.blocks[tile.block];
  std::uint16_t* const hazards = tables[threadIdx.x / 32];
  for (unsigned i = lane; i < kCompactClasses; i += 32) {
    hazards[i] = parts.tables[block.table].hazards[i];
  }
  __syncwarp();
  const unsigned mask = fields.classes() - 1;
  const Units units(block, tile.first);
  std::uint32_t* const sums = parts.sums + std::uint64_t{number} * kTileSums<Unit>;
  std::uint32_t before = 0;
#pragma unroll 2
  for (std::uint32_t first = 0; first < tile.units; first += 32 * Units::kPack) {
    const std::uint32_t at = first + lane * Units::kPack;
    std::uint32_t lane_sum = 0;
    if (at < tile.units) {
      const auto pack = units.pack(at, tile.units);
#pragma unroll
      for (unsigned i = 0; i < Units::kPack; ++i) {
        lane_sum += hazards[pack.bits(i, fields.mantissa_bits, mask)];
      }
      // Subtracts the padding after the last unit, which was read as zeros.
      if (at + Units::kPack > tile.units) lane_sum -= (at + Units::kPack - tile.units) * hazards[0];
    }
    const std::uint32_t sum = running_sum(lane_sum, lane);
    if (lane % kLanes == 0 && at < tile.units) sums[at / kHazardGroup] = before + sum - lane_sum;
    before += __shfl_sync(~0U, sum, 31);
  }
  // After the last group: the total, repeated for readers that load four entries at a time.
  if (lane < 4) {
    const std::uint32_t end = (tile.units + kHazardGroup - 1) / kHazardGroup + lane;
    if (end < kTileSums<Unit>) sums[end] = before;
  }
}

}  // namespace

CompactParts carve_compact(Carver& carver, const CompactShape& shape, MemoryKind kind) {
  CompactParts parts;
  parts.blocks = carver.take<CompactBlock>(shape.blocks);
  parts.tiles = carver.take<TileWork>(shape.tiles);
  parts.tables = carver.take<DeviceTable>(shape.tables);
  parts.steps = carver.take<CompactSteps>(shape.steps);
  parts.bad = carver.take<std::uint32_t>(1);
  if (kind == MemoryKind::kDevice) {
    parts.sums =
        carver.take<std::uint32_t>(std::uint64_t{shape.tiles} * tile_sums(shape.fields.unit_bytes));
  }
  return parts;
}

std::uint64_t tiles_of(const CompactFields& fields, std::span<const CompactBlock> blocks) {
  std::uint64_t tiles = 0;
  for (const CompactBlock& block : blocks) {
    tiles += fields.tiles(block.place.units);
  }
  return tiles;
}

bool any_cut(std::span<const CompactBlock> blocks) {
  return std::ranges::any_of(blocks,
                             [](const CompactBlock& block) { return !block.place.contiguous(); });
}

Status fill_blocks(const CompactFields& fields, std::span<const CompactBlock> blocks,
                   const CompactParts& host) {
  const std::uint32_t tile_units = fields.tile_units();
  std::uint32_t tile = 0;
  for (std::uint32_t b = 0; b < blocks.size(); ++b) {
    const CompactBlock& block = blocks[b];
    const unsigned bytes = block.entry.position_bytes;
    if ((bytes != 4 && bytes != 8) || block.entry.count > block.place.units) {
      return error(StatusCode::kInvalidArgument, "block number ", b, ": ", block.entry.count,
                   " changes of ", block.place.units, " units, with positions of ", bytes,
                   " bytes");
    }
    host.blocks[b] = block;
    for (std::uint64_t at = 0; at < block.place.units; at += tile_units) {
      const auto units =
          static_cast<std::uint32_t>(std::min<std::uint64_t>(tile_units, block.place.units - at));
      host.tiles[tile++] = {at, 0, 0, b, units, 0, 0};
    }
  }
  *host.bad = kNoTile;
  return {};
}

Status fill_tables(const CompactFields& fields, std::span<const CompactTable> tables,
                   const CompactShape& shape, const CompactParts& host) {
  std::uint32_t steps = 0;
  for (std::size_t t = 0; t < tables.size(); ++t) {
    const CompactTable& table = tables[t];
    if (!(table.fields == fields) || steps + table.steps.size() > shape.steps) {
      return error(StatusCode::kInvalidArgument, "table number ", t, ": has ", table.steps.size(),
                   " lists of steps, of units of ", table.fields.unit_bytes, " bytes");
    }
    std::ranges::copy(table.hazards, host.tables[t].hazards);
    std::ranges::copy(table.step_rows, host.tables[t].step_rows);
    host.tables[t].first_steps = steps;
    std::ranges::copy(table.steps, host.steps + steps);
    steps += static_cast<std::uint32_t>(table.steps.size());
  }
  return {};
}

Status sum_hazards(const CompactParts& dev, const CompactShape& shape, bool cut,
                   cudaStream_t stream) {
  with_tiles(shape.fields, cut, [&]<typename Unit, typename Cut>(Unit, Cut) {
    sum_tiles<Unit, Cut::value>
        <<<(shape.tiles + kHazardWarps - 1) / kHazardWarps, kHazardWarps * 32, 0, stream>>>(
            dev, shape.fields, shape.tiles);
  });
  return check_launch("sum_tiles");
}

}  // namespace driftless::cuda
