// SPDX-License-Identifier: Apache-2.0
#include "plugin/checkpoint/compact_writer.h"

#include <algorithm>
#include <cstring>

#include "core/parallel.h"
#include "kernels/compact_ops.h"
#include "kernels/tensor_ops.h"
#include "plugin/checkpoint/compact_tables.h"

namespace driftless {
namespace {

// A thread codes this many units at a time: they and their copy fit into the second-level cache.
constexpr std::uint64_t kStretchUnits = 131072;
static_assert(kStretchUnits % kCompactTileUnits == 0 && kStretchUnits % kCompactByteTileUnits == 0);

// A number of coded tiles of one block.
struct CodedStretch {
  std::size_t block = 0;
  std::uint64_t first = 0, units = 0;  // range in the block
  CompactStreams streams;
  Digest change;
};

// The changes of a stretch, and its old units.
struct StretchInput {
  std::vector<std::byte> units;
  std::vector<std::uint32_t> offsets;
  std::vector<std::byte> values, old_values;
};

// Reads the changes in [first, first + count). input.units becomes the stretch's old units: a copy
// of the new ones in which the changes are undone.
void read_stretch(const ChangedBlock& block, std::uint64_t first, std::uint64_t count,
                  unsigned width, StretchInput& input) {
  input.units.resize(count * width);
  block.copy_units(first, count, width, input.units.data());
  input.offsets.clear();
  input.values.clear();
  input.old_values.clear();
  const auto ends_before = [](const ChangedBlock::Piece& piece, std::uint64_t unit) {
    return piece.origin + piece.offsets.back() < unit;
  };
  auto piece = std::lower_bound(block.pieces.begin(), block.pieces.end(), first, ends_before);
  for (; piece != block.pieces.end() && piece->origin + piece->offsets.front() < first + count;
       ++piece) {
    const auto below = [&](std::uint64_t unit) {
      const auto& offsets = piece->offsets;
      if (unit <= piece->origin) return std::size_t{0};
      return static_cast<std::size_t>(
          std::lower_bound(offsets.begin(), offsets.end(), unit - piece->origin) - offsets.begin());
    };
    const std::size_t begin = below(first), end = below(first + count);
    for (std::size_t k = begin; k < end; ++k) {
      input.offsets.push_back(
          static_cast<std::uint32_t>(piece->origin + piece->offsets[k] - first));
    }
    const auto append = [&](std::vector<std::byte>& to, const std::vector<std::byte>& from) {
      to.insert(to.end(), from.begin() + static_cast<std::ptrdiff_t>(begin * width),
                from.begin() + static_cast<std::ptrdiff_t>(end * width));
    };
    append(input.values, piece->values);
    append(input.old_values, piece->old_values);
  }
  host_kernels().scatter(input.units.data(), width, input.offsets.data(), input.offsets.size(),
                         input.old_values.data());
}

Status code_stretch(const WeightLayout& layout, const CompactTable& table,
                    const ChangedBlock& block, StretchInput& input, CodedStretch& stretch) {
  const unsigned width = table.fields.unit_bytes;
  read_stretch(block, stretch.first, stretch.units, width, input);
  DeltaView delta{block.tensor, width, 0, input.offsets, input.values.data()};
  DRIFTLESS_RETURN_IF_ERROR(encode_compact(host_kernels(), table, delta, input.units.data(),
                                           stretch.units, stretch.streams));
  delta.origin = stretch.first;
  const BlockPlace place =
      block.block != nullptr ? block.block->place : BlockPlace::all(layout[block.tensor].units());
  stretch.change = digest_block_change(host_kernels(), digest_tensor_key(layout[block.tensor].name),
                                       place, delta, input.old_values.data());
  return {};
}

// A block in the form that the frame takes.
struct JoinedBlock {
  std::vector<std::byte> index, tiles;
};

std::vector<JoinedBlock> join(std::size_t blocks, std::span<CodedStretch> stretches) {
  std::vector<JoinedBlock> joined(blocks);
  for (std::size_t begin = 0; begin < stretches.size();) {
    const std::size_t block = stretches[begin].block;
    CompactIndex index;
    for (; begin < stretches.size() && stretches[begin].block == block; ++begin) {
      CompactStreams& streams = stretches[begin].streams;
      index.change += stretches[begin].change;
      index.tiles.insert(index.tiles.end(), streams.tiles.begin(), streams.tiles.end());
      joined[block].tiles.insert(joined[block].tiles.end(), streams.bytes.begin(),
                                 streams.bytes.end());
      streams = {};
    }
    append_compact_index(index, joined[block].index);
  }
  return joined;
}

}  // namespace

Status encode_changed_blocks(const FrameContext& context, const WeightLayout& layout, DType dtype,
                             std::span<const ChangedBlock> blocks, unsigned threads,
                             std::vector<std::byte>& out) {
  const std::optional<CompactFields> fields = compact_fields(dtype);
  if (!fields) {
    return error(StatusCode::kInvalidArgument, info(dtype).name, " is not coded by 'compact'");
  }
  std::vector<CodedStretch> stretches;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    for (std::uint64_t at = 0; at < blocks[i].inside.units; at += kStretchUnits) {
      stretches.push_back({i, at, std::min(kStretchUnits, blocks[i].inside.units - at), {}, {}});
    }
  }
  const BlockTables tables = choose_tables(*fields, blocks, threads);
  std::vector<StretchInput> inputs(std::max(1U, threads));
  DRIFTLESS_RETURN_IF_ERROR(
      parallel_for(stretches.size(), threads, [&](std::size_t i, unsigned worker) {
        const std::size_t block = stretches[i].block;
        return code_stretch(layout, tables.tables[tables.of_block[block]], blocks[block],
                            inputs[worker], stretches[i]);
      }));
  const std::vector<JoinedBlock> joined = join(blocks.size(), stretches);
  std::vector<CompactBlock> coded;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    coded.push_back({blocks[i].tensor, blocks[i].block, tables.of_block[i], blocks[i].changes(),
                     joined[i].index, joined[i].tiles});
  }
  return encode_compact_frame(context, layout, dtype, tables.tables, coded, out);
}

}  // namespace driftless
