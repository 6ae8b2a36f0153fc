// SPDX-License-Identifier: Apache-2.0
// write_compact_frames(): codes changes on the device, where they were found, with the units of the
// snapshot. The host then writes the frames.
#include <algorithm>

#include "kernels/cuda/compact.h"
#include "plugin/device/device_payload.h"

namespace driftless {
namespace {

constexpr std::uint64_t kFrameChanges = std::uint64_t{16} << 20;
constexpr std::uint64_t kFrameUnits = std::uint64_t{1} << 30;  // 128 MiB of sums

// The changes of one block: those of its slices, in order.
struct FoundBlock {
  std::uint32_t number = 0;  // in the snapshot
  std::span<const SliceChanges> found;
  std::uint64_t changes = 0;
};

// Blocks of one dtype that make up a frame.
class CompactFrame {
 public:
  CompactFrame(const PayloadContext& context, DeviceWork& work, DType dtype,
               std::span<const FoundBlock> blocks)
      : context_(context),
        work_(work),
        dtype_(dtype),
        width_(unit_bytes(dtype)),
        fields_(*compact_fields(dtype)),
        blocks_(blocks) {}

  Status encode(const FrameContext& frame, std::vector<std::byte>& out) {
    DRIFTLESS_RETURN_IF_ERROR(join());
    DRIFTLESS_RETURN_IF_ERROR(code());
    std::vector<std::vector<std::byte>> indexes(blocks_.size());
    std::vector<CompactBlock> rows;
    std::size_t tile = 0;
    std::uint64_t at = 0;
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
      const OwnedTensor& owned = context_.store->owned(blocks_[i].number);
      CompactIndex index;
      const std::uint64_t begin = at;
      for (std::uint64_t unit = 0; unit < owned.place().units; unit += fields_.tile_units()) {
        index.tiles.push_back(tiles_[tile]);
        at += tiles_[tile++].bytes;
      }
      for (const SliceChanges& found : blocks_[i].found) {
        index.change += cuda::digest_from_sums(
            std::span<const std::uint64_t, cuda::kDigestSums>(found.sums, cuda::kDigestSums));
      }
      append_compact_index(index, indexes[i]);
      rows.push_back({owned.tensor(),
                      owned.block(),
                      0,
                      blocks_[i].changes,
                      indexes[i],
                      {work_.coded.host.data() + begin, at - begin}});
    }
    return encode_compact_frame(frame, *context_.layout, dtype_, std::span(&table_, 1), rows, out);
  }

 private:
  // Copies positions and values of a block's slices into one range each.
  Status join() {
    std::uint64_t changes = 0, positions = 0;
    for (const FoundBlock& block : blocks_) {
      const OwnedTensor& owned = context_.store->owned(block.number);
      cuda::CompactBlock coded;
      coded.old_dev = context_.store->data(block.number);
      coded.place = BlockPlace::all(owned.place().units);
      coded.entry.count = block.changes;
      coded.entry.value_begin = changes;
      coded.entry.position_begin = positions;
      coded.entry.position_bytes = block.found.front().entry.position_bytes;
      changes += block.changes;
      positions = (positions + block.changes * coded.entry.position_bytes + 7) / 8 * 8;
      coded_.push_back(coded);
    }
    values_at_ = device_aligned(positions);
    DRIFTLESS_RETURN_IF_ERROR(work_.stream.wait());
    DRIFTLESS_RETURN_IF_ERROR(
        work_.joined.reserve(values_at_ + changes * width_, MemoryKind::kDevice));
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
      std::uint64_t position_at = coded_[i].entry.position_begin;
      std::uint64_t value_at = values_at_ + coded_[i].entry.value_begin * width_;
      for (const SliceChanges& found : blocks_[i].found) {
        const std::uint64_t stream_bytes = found.entry.count * found.entry.position_bytes;
        DRIFTLESS_RETURN_IF_ERROR(
            work_.stream.copy(work_.joined.data() + position_at,
                              found.positions_dev + found.entry.position_begin, stream_bytes));
        DRIFTLESS_RETURN_IF_ERROR(work_.stream.copy(
            work_.joined.data() + value_at, found.values_dev + found.entry.value_begin * width_,
            found.entry.count * width_));
        position_at += stream_bytes;
        value_at += found.entry.count * width_;
      }
    }
    return {};
  }

  // Makes the table and the tiles, and copies their streams to pinned memory.
  Status code() {
    const cuda::WorkspaceSize size = cuda::CompactEncode::workspace_size(coded_, fields_, 1);
    DRIFTLESS_RETURN_IF_ERROR(work_.coder.dev.reserve(size.dev_bytes, MemoryKind::kDevice));
    DRIFTLESS_RETURN_IF_ERROR(work_.coder.host.reserve(size.host_bytes, MemoryKind::kHost));
    DRIFTLESS_ASSIGN_OR_RETURN(cuda::CompactEncode encode,
                               cuda::CompactEncode::make(coded_, fields_, 1, work_.joined.data(),
                                                         work_.joined.data() + values_at_,
                                                         work_.coder.get(), work_.stream.get()));
    DRIFTLESS_RETURN_IF_ERROR(work_.stream.wait());
    table_ = make_compact_table(fields_, encode.counts());
    DRIFTLESS_RETURN_IF_ERROR(encode.size(std::span(&table_, 1), work_.stream.get()));
    DRIFTLESS_RETURN_IF_ERROR(work_.stream.wait());
    DRIFTLESS_ASSIGN_OR_RETURN(tiles_, encode.tiles());
    std::uint64_t bytes = 0;
    for (const CompactTile& tile : tiles_) bytes += tile.bytes;
    DRIFTLESS_RETURN_IF_ERROR(work_.coded.dev.reserve(bytes, MemoryKind::kDevice));
    DRIFTLESS_RETURN_IF_ERROR(work_.coded.host.reserve(bytes, MemoryKind::kHost));
    DRIFTLESS_RETURN_IF_ERROR(encode.run(work_.coded.dev.data(), work_.stream.get()));
    DRIFTLESS_RETURN_IF_ERROR(
        work_.stream.copy(work_.coded.host.data(), work_.coded.dev.data(), bytes));
    return work_.stream.wait();
  }

  const PayloadContext& context_;
  DeviceWork& work_;
  DType dtype_;
  unsigned width_;
  CompactFields fields_;
  std::span<const FoundBlock> blocks_;
  std::vector<cuda::CompactBlock> coded_;
  std::uint64_t values_at_ = 0;
  CompactTable table_;
  std::span<const CompactTile> tiles_;
};

}  // namespace

Status write_compact_frames(const PayloadContext& context, DeviceWork& work, DType dtype,
                            std::span<const SliceChanges> found, std::uint32_t& parts,
                            PayloadFindings& findings, std::size_t& written) {
  written = 0;
  std::vector<FoundBlock> blocks;
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (blocks.empty() || blocks.back().number != found[i].number) {
      blocks.push_back({found[i].number, found.subspan(i, 0)});
    }
    FoundBlock& last = blocks.back();
    last.found = {last.found.data(), last.found.size() + 1};
    last.changes += found[i].entry.count;
  }
  for (std::span<const FoundBlock> rest(blocks); !rest.empty();) {
    std::size_t count = 0;
    for (std::uint64_t changes = 0, units = 0; count < rest.size(); ++count) {
      changes += rest[count].changes;
      units += context.store->owned(rest[count].number).place().units;
      if (count > 0 && (changes > kFrameChanges || units > kFrameUnits)) break;
    }
    FrameContext frame = context.frame;
    frame.index = parts;
    std::vector<std::byte>& encoded = context.buffers->encoded;
    encoded.clear();
    DRIFTLESS_RETURN_IF_ERROR(
        CompactFrame(context, work, dtype, rest.first(count)).encode(frame, encoded));
    DRIFTLESS_RETURN_IF_ERROR(
        put_frame(context, frame_file_name(frame.rank, frame.index), encoded, findings));
    ++parts;
    for (const FoundBlock& block : rest.first(count)) written += block.found.size();
    rest = rest.subspan(count);
  }
  return {};
}

}  // namespace driftless
