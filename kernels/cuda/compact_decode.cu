// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/compact.cuh"

namespace driftless::cuda {
namespace {

using namespace compact;

// Reads a tile's stream in words; surrounding bytes are read but not used.
class StreamBytes {
 public:
  __device__ StreamBytes(const std::byte* begin, std::uint32_t size) : left_(size) {
    const auto address = reinterpret_cast<std::uintptr_t>(begin);
    word_ = reinterpret_cast<const std::uint32_t*>(address & ~std::uintptr_t{3});
    const auto skip = static_cast<unsigned>(address & 3);
    if (size == 0) return;
    fetched_ = size + skip;
    window_ = std::uint64_t{next_word()} << (32 + 8 * skip);
    have_ = 4 - skip;
  }
  __device__ __forceinline__ std::uint32_t shift_in(std::uint32_t state, unsigned count) {
    if (count == 0) return state;
    if (have_ < count) {
      window_ |= std::uint64_t{next_word()} << (32 - 8 * have_);
      have_ += 4;
    }
    state = (state << (8 * count)) | static_cast<std::uint32_t>(window_ >> (64 - 8 * count));
    window_ <<= 8 * count;
    have_ -= count;
    good_ = good_ && left_ >= count;
    left_ -= left_ >= count ? count : left_;
    return state;
  }
  __device__ bool good() const { return good_; }
  __device__ bool empty() const { return left_ == 0; }

 private:
  __device__ __forceinline__ std::uint32_t next_word() {
    if (fetched_ == 0) return 0;
    fetched_ -= fetched_ < 4 ? fetched_ : 4;
    return __byte_perm(__ldg(word_++), 0, 0x0123);
  }
  const std::uint32_t* word_;
  std::uint64_t window_ = 0;   // the next bytes, in the upper bits
  unsigned have_ = 0;          // number of bytes in it
  std::uint32_t left_;         // bytes left in the stream, including the window
  std::uint32_t fetched_ = 0;  // bytes of words still to be read
  bool good_ = true;
};

template <typename Unit, bool Cut>
class TileAxis {
 public:
  // Lanes per tile: each of them tracks the state of the decoder. More lanes would wait less for
  // memory, and repeat more work.
  static constexpr unsigned kLanes = sizeof(Unit) == 1 ? 2 : 4;
  static constexpr unsigned kShare = kHazardGroup / kLanes;  // units of a group per lane

  // `hazards`: those of the block's table.
  __device__ TileAxis(const CompactParts& parts, const CompactFields& fields,
                      const CompactBlock& block, const TileWork& tile, std::uint32_t number,
                      const std::uint16_t* hazards)
      : units_(block, tile.first),
        hazards_(hazards),
        sums_(parts.sums + std::uint64_t{number} * kTileSums<Unit>),
        shift_(fields.mantissa_bits),
        mask_(fields.classes() - 1),
        count_(tile.units),
        lane_(threadIdx.x % kLanes),
        mates_(((1U << kLanes) - 1) << (threadIdx.x % 32 - lane_)) {}

  // True on one of the lanes.
  __device__ bool leads() const { return lane_ == 0; }

  __device__ std::uint32_t length() const {
    return sums_[(count_ + kHazardGroup - 1) / kHazardGroup];
  }
  __device__ __forceinline__ std::uint32_t hazard(std::uint32_t unit) const {
    return hazards_[(unit >> shift_) & mask_];
  }
  struct Place {
    std::uint32_t at, begin, unit;
  };
  // The unit that has `point`; the point must be on the axis and not before `group`. Each lane of
  // the tile goes through its whole share of a group, because the lanes would stop at different
  // units.
  __device__ __forceinline__ Place find(std::uint32_t point, std::uint32_t group) const {
    using Units = TileUnits<Unit, Cut>;
    constexpr unsigned kPacks = kShare / Units::kPack;
    std::uint32_t begin = 0;
    group = group_of(point, group, begin);
    const std::uint32_t first = group * kHazardGroup + lane_ * kShare;
    std::uint32_t hazards[kShare], lane_sum = 0;
#pragma unroll
    for (unsigned p = 0; p < kPacks; ++p) {
      const auto pack = units_.pack(first + p * Units::kPack, count_);
#pragma unroll
      for (unsigned i = 0; i < Units::kPack; ++i) {
        hazards[p * Units::kPack + i] = hazards_[pack.bits(i, shift_, mask_)];
        lane_sum += hazards[p * Units::kPack + i];
      }
    }
    std::uint32_t end = lane_sum;
#pragma unroll
    for (unsigned step = 1; step < kLanes; step *= 2) {
      const std::uint32_t left = __shfl_up_sync(mates_, end, step, kLanes);
      if (lane_ >= step) end += left;
    }
    end += begin;
    const unsigned owner = __ballot_sync(mates_, end > point) & mates_;
    Place place{first, end - lane_sum, 0};
    end -= lane_sum;
#pragma unroll
    for (unsigned i = 0; i < kShare; ++i) {
      end += hazards[i];
      const bool before = end <= point;
      place.begin = before ? end : place.begin;
      place.at += before ? 1 : 0;
    }
    const int from = __ffs(static_cast<int>(owner)) - 1;  // the first lane that ends past the point
    place.at = __shfl_sync(mates_, place.at, from);
    place.begin = __shfl_sync(mates_, place.begin, from);
    place.unit = units_[place.at];
    return place;
  }

 private:
  // The group, from `group` on, that has the point; and where it begins.
  __device__ __forceinline__ std::uint32_t group_of(std::uint32_t point, std::uint32_t group,
                                                    std::uint32_t& begin) const {
    for (std::uint32_t first = group / 4 * 4;; first += 4) {
      const uint4 four = *reinterpret_cast<const uint4*>(sums_ + first);
      if (first == group / 4 * 4 || four.x <= point) {
        // Sums ascend, so those up to the point come first.
        const unsigned inside = (four.y <= point) + (four.z <= point) + (four.w <= point);
        begin = inside == 0 ? four.x : inside == 1 ? four.y : inside == 2 ? four.z : four.w;
        group = first + inside;
        if (inside == 3) continue;
      }
      return group;
    }
  }

  TileUnits<Unit, Cut> units_;
  const std::uint16_t* hazards_;
  const std::uint32_t* sums_;
  unsigned shift_, mask_;
  std::uint32_t count_;
  unsigned lane_, mates_;  // number among the tile's lanes; mask of these in the warp
};

struct Outputs {
  std::byte* positions;
  std::byte* values;
  std::byte* old_values;
};

// All lanes of a tile call it: false unless the stream is what an encoder makes.
template <typename Unit, bool Cut>
__device__ bool decode_tile(const CompactParts& parts, const CompactFields& fields,
                            const Axis& axis, const TileWork& tile, std::uint32_t number,
                            const std::uint16_t* hazards, const std::byte* streams,
                            const Outputs& out) {
  const CompactBlock& block = parts.blocks[tile.block];
  const DeviceTable& table = parts.tables[block.table];
  const CompactSteps* const steps = parts.steps + table.first_steps;
  const TileAxis<Unit, Cut> units(parts, fields, block, tile, number, hazards);
  BasicDecoder<StreamBytes> decoder(StreamBytes(streams + tile.stream_begin, tile.stream_bytes));
  const std::uint32_t length = units.length();
  const bool wide = block.entry.position_bytes == 8;
  std::byte* const positions =
      out.positions + block.entry.position_begin + tile.change_begin * block.entry.position_bytes;
  const std::uint64_t first_value = block.entry.value_begin + tile.change_begin;
  auto* const values = reinterpret_cast<Unit*>(out.values) + first_value;
  auto* const old_values = reinterpret_cast<Unit*>(out.old_values) + first_value;
  std::uint32_t end = 0, group = 0;
  for (std::uint32_t k = 0; k < tile.changes; ++k) {
    GapPoint gap;
    if (!peek_gap(decoder, axis, length - end, gap)) return false;
    const auto place = units.find(end + gap.point, group);
    const std::uint32_t hazard = units.hazard(place.unit);
    if (!skip_gap(decoder, axis, gap, place.begin - end, hazard)) return false;
    const std::uint32_t row = table.step_rows[fields.class_of(place.unit)];
    std::uint32_t to;
    if (!take_step(decoder, fields, row == 0 ? nullptr : steps + row - 1, place.unit, to) ||
        !decoder.good()) {
      return false;
    }
    const std::uint64_t position = tile.first + place.at;
    end = place.begin + hazard;
    group = place.at / kHazardGroup;
    if (!units.leads()) continue;
    if (wide) {
      reinterpret_cast<std::uint64_t*>(positions)[k] = position;
    } else {
      reinterpret_cast<std::uint32_t*>(positions)[k] = static_cast<std::uint32_t>(position);
    }
    values[k] = static_cast<Unit>(to);
    old_values[k] = static_cast<Unit>(place.unit);
  }
  return decoder.finished();
}

template <typename Unit, bool Cut>
__global__ void __launch_bounds__(kTileThreads)
    decode_tiles(CompactParts parts, CompactFields fields, std::uint32_t tiles,
                 const std::byte* streams, Outputs out) {
  __shared__ Axis axis;
  __shared__ std::uint16_t shared_hazards[kCompactClasses];  // those of the first tile's table
  constexpr unsigned kTiles = kTileThreads / TileAxis<Unit, Cut>::kLanes;
  const std::uint32_t shared = parts.blocks[parts.tiles[blockIdx.x * kTiles].block].table;
  for (unsigned i = threadIdx.x; i < kCompactClasses; i += kTileThreads) {
    shared_hazards[i] = parts.tables[shared].hazards[i];
  }
  share_axis(axis);
  const std::uint32_t number = blockIdx.x * kTiles + threadIdx.x / TileAxis<Unit, Cut>::kLanes;
  if (number >= tiles) return;
  const TileWork tile = parts.tiles[number];
  if (tile.changes == 0) return;
  const std::uint32_t table = parts.blocks[tile.block].table;
  const std::uint16_t* const hazards =
      table == shared ? shared_hazards : parts.tables[table].hazards;
  if (!decode_tile<Unit, Cut>(parts, fields, axis, tile, number, hazards, streams, out)) {
    atomicMin(parts.bad, number);
  }
}

CompactFields fields_of(std::span<const CompactTable> tables) {
  return tables.empty() ? CompactFields() : tables.front().fields;
}

CompactShape shape_of(std::span<const CompactBlock> blocks, std::span<const CompactTable> tables) {
  CompactShape shape;
  shape.fields = fields_of(tables);
  shape.blocks = static_cast<std::uint32_t>(blocks.size());
  shape.tiles = static_cast<std::uint32_t>(tiles_of(shape.fields, blocks));
  shape.tables = static_cast<std::uint32_t>(tables.size());
  for (const CompactTable& table : tables) {
    shape.steps += static_cast<std::uint32_t>(table.steps.size());
  }
  return shape;
}

CompactParts carve_decode(std::byte* memory, const CompactShape& shape, MemoryKind kind,
                          std::uint64_t* used = nullptr) {
  Carver carver(memory);
  const CompactParts parts = carve_compact(carver, shape, kind);
  if (used != nullptr) *used = carver.used();
  return parts;
}

// Computes where each tile's changes and bytes begin. kCorrupt if the sums differ from the blocks'.
Status fill_tiles(const CompactShape& shape, std::span<const CompactBlock> blocks,
                  std::span<const CompactTile> tiles, const CompactParts& host) {
  const std::uint32_t tables = shape.tables;
  std::size_t t = 0;
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    std::uint64_t changes = 0, bytes = blocks[b].stream_begin;
    const std::uint64_t block_tiles = tiles_of(shape.fields, blocks.subspan(b, 1));
    if (blocks[b].table >= tables || block_tiles > tiles.size() - t) {
      return error(StatusCode::kCorrupt, "block number ", b, ": has ", block_tiles,
                   " tiles and table ", blocks[b].table, ", of ", tiles.size() - t, " and ",
                   tables);
    }
    for (const std::size_t end = t + block_tiles; t < end; ++t) {
      TileWork& work = host.tiles[t];
      work.change_begin = changes;
      work.stream_begin = bytes;
      work.changes = tiles[t].changes;
      work.stream_bytes = tiles[t].bytes;
      changes += tiles[t].changes;
      bytes += tiles[t].bytes;
      if (work.changes > work.units || (work.changes == 0) != (work.stream_bytes == 0)) break;
    }
    if (changes != blocks[b].entry.count || (t != tiles.size() && host.tiles[t].block == b)) {
      return error(StatusCode::kCorrupt, "block number ", b, ": its tiles have ", changes,
                   " changes, and its row ", blocks[b].entry.count);
    }
  }
  return t == tiles.size() ? Status()
                           : error(StatusCode::kCorrupt, t, " of ", tiles.size(), " tiles used");
}

}  // namespace

WorkspaceSize CompactDecode::workspace_size(std::span<const CompactBlock> blocks,
                                            std::span<const CompactTable> tables) {
  WorkspaceSize size;
  const CompactShape shape = shape_of(blocks, tables);
  std::ignore = carve_decode(nullptr, shape, MemoryKind::kDevice, &size.dev_bytes);
  std::ignore = carve_decode(nullptr, shape, MemoryKind::kHost, &size.host_bytes);
  return size;
}

Result<CompactDecode> CompactDecode::make(std::span<const CompactBlock> blocks,
                                          std::span<const CompactTable> tables,
                                          std::span<const CompactTile> tiles,
                                          const Workspace& workspace, Stream stream) {
  const CompactFields fields = fields_of(tables);
  if (tiles_of(fields, blocks) >= kNoTile) {
    return error(StatusCode::kInvalidArgument, tiles_of(fields, blocks),
                 " tiles of compact at once");
  }
  DRIFTLESS_RETURN_IF_ERROR(
      check_workspace(workspace, workspace_size(blocks, tables), "compact, decoding"));
  CompactDecode decode;
  decode.shape_ = shape_of(blocks, tables);
  decode.cut_ = any_cut(blocks);
  decode.dev_ = workspace.dev;
  decode.host_ = workspace.host;
  const CompactParts host = carve_decode(decode.host_, decode.shape_, MemoryKind::kHost);
  const CompactParts dev = carve_decode(decode.dev_, decode.shape_, MemoryKind::kDevice);
  DRIFTLESS_RETURN_IF_ERROR(fill_blocks(fields, blocks, host));
  DRIFTLESS_RETURN_IF_ERROR(fill_tiles(decode.shape_, blocks, tiles, host));
  DRIFTLESS_RETURN_IF_ERROR(fill_tables(decode.shape_.fields, tables, decode.shape_, host));
  // The host's tables have the same layout as the device's.
  const auto used =
      static_cast<std::uint64_t>(reinterpret_cast<std::byte*>(host.bad + 1) - decode.host_);
  DRIFTLESS_RETURN_IF_ERROR(upload(dev.blocks, decode.host_, used, native(stream)));
  if (decode.shape_.tiles == 0) return decode;
  DRIFTLESS_RETURN_IF_ERROR(sum_hazards(dev, decode.shape_, decode.cut_, native(stream)));
  return decode;
}

Status CompactDecode::run(const std::byte* streams_dev, std::byte* positions_dev,
                          std::byte* values_dev, std::byte* old_values_dev, Stream stream) {
  const CompactParts dev = carve_decode(dev_, shape_, MemoryKind::kDevice);
  if (shape_.tiles == 0) return {};
  const Outputs out{positions_dev, values_dev, old_values_dev};
  with_tiles(shape_.fields, cut_, [&]<typename Unit, typename Cut>(Unit, Cut) {
    constexpr unsigned kTiles = kTileThreads / TileAxis<Unit, Cut::value>::kLanes;
    decode_tiles<Unit, Cut::value>
        <<<(shape_.tiles + kTiles - 1) / kTiles, kTileThreads, 0, native(stream)>>>(
            dev, shape_.fields, shape_.tiles, streams_dev, out);
  });
  DRIFTLESS_RETURN_IF_ERROR(check_launch("decode_tiles"));
  return cuda::check(cudaMemcpyAsync(carve_decode(host_, shape_, MemoryKind::kHost).bad, dev.bad,
                                     sizeof(std::uint32_t), cudaMemcpyDeviceToHost, native(stream)),
                     "compact: result");
}

Status CompactDecode::check() const {
  const CompactParts host = carve_decode(host_, shape_, MemoryKind::kHost);
  if (*host.bad == kNoTile) return {};
  const TileWork& tile = host.tiles[*host.bad];
  return error(StatusCode::kMismatch, "the ", tile.changes, " changes of the ", tile.units,
               " units from ", tile.first,
               " do not decode with the weights that are here: these are not the version's base, "
               "or the delta is damaged");
}

std::uint32_t CompactDecode::bad_block() const {
  const CompactParts host = carve_decode(host_, shape_, MemoryKind::kHost);
  return *host.bad == kNoTile ? 0 : host.tiles[*host.bad].block;
}

}  // namespace driftless::cuda
