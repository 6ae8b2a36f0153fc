// SPDX-License-Identifier: Apache-2.0
#include "plugin/checkpoint/compact_writer.h"

#include <algorithm>
#include <cstring>

#include "core/parallel.h"
#include "kernels/compact_ops.h"
#include "kernels/tensor_ops.h"

namespace driftless {
namespace {

// Units that a thread codes at a time: they and their copy stay in the second-level cache.
constexpr std::uint64_t kStretchUnits = 8 * std::uint64_t{kCompactTileUnits};

// Some tiles of a block.
struct CodedStretch {
  std::size_t block = 0;
  std::uint64_t first = 0, units = 0;  // in the block
  CompactStreams streams;
  Digest change;
};

// Changes of a stretch, and its old units.
struct StretchInput {
  std::vector<std::byte> units;
  std::vector<std::uint32_t> offsets;
  std::vector<std::byte> values, old_values;
};

void copy_units(const ChangedBlock& block, std::uint64_t first, std::uint64_t count, unsigned width,
                std::byte* out) {
  const BlockPlace& inside = block.inside;
  for (std::uint64_t done = 0; done < count;) {
    const std::uint64_t unit = first + done;
    const std::uint64_t some =
        inside.contiguous() ? count : std::min(count - done, inside.run - unit % inside.run);
    std::memcpy(out + done * width, block.units + inside.at(unit) * width, some * width);
    done += some;
  }
}

// The changes from unit `first` on, below first + count; the stretch's units are as they were then.
void read_stretch(const ChangedBlock& block, std::uint64_t first, std::uint64_t count,
                  unsigned width, StretchInput& input) {
  input.units.resize(count * width);
  copy_units(block, first, count, width, input.units.data());
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

// From all changes, and a sample of the units. That they are the new ones matters to no table.
CompactTable table_of(const CompactFields& fields, std::span<const ChangedBlock> blocks,
                      std::span<const CodedStretch> stretches, unsigned threads) {
  std::vector<std::unique_ptr<CompactCounts>> counts(std::max(1U, threads));
  const auto of_worker = [&](unsigned worker) -> CompactCounts& {
    if (counts[worker] == nullptr) counts[worker] = std::make_unique<CompactCounts>();
    return *counts[worker];
  };
  const unsigned width = fields.unit_bytes;
  std::vector<std::vector<std::byte>> scratch(counts.size());
  // Of many stretches every fourth is enough.
  const std::size_t every = stretches.size() < 64 ? 1 : 4;
  const std::size_t tasks = (stretches.size() + every - 1) / every;
  const Status units = parallel_for(tasks, threads, [&](std::size_t task, unsigned worker) {
    const CodedStretch& stretch = stretches[task * every];
    const ChangedBlock& block = blocks[stretch.block];
    const std::byte* at = block.units + block.inside.at(stretch.first) * width;
    if (!block.inside.contiguous()) {
      scratch[worker].resize(stretch.units * width);
      copy_units(block, stretch.first, stretch.units, width, scratch[worker].data());
      at = scratch[worker].data();
    }
    count_compact_units(fields, at, stretch.units, of_worker(worker));
    return Status();
  });
  static_cast<void>(units);  // nothing there fails
  for (const std::unique_ptr<CompactCounts>& each : counts) {
    if (each == nullptr) continue;
    for (std::uint64_t& count : each->units) count *= every;
  }
  for (const ChangedBlock& block : blocks) {
    for (const ChangedBlock::Piece& piece : block.pieces) {
      count_compact_changes(fields, piece.old_values.data(), piece.values.data(),
                            piece.offsets.size(), of_worker(0));
    }
  }
  for (std::size_t i = 1; i < counts.size(); ++i) {
    if (counts[i] != nullptr) of_worker(0).add(*counts[i]);
  }
  return make_compact_table(fields, of_worker(0));
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

// A block as the frame takes it.
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
  const CompactTable table = table_of(*fields, blocks, stretches, threads);
  std::vector<StretchInput> inputs(std::max(1U, threads));
  DRIFTLESS_RETURN_IF_ERROR(
      parallel_for(stretches.size(), threads, [&](std::size_t i, unsigned worker) {
        return code_stretch(layout, table, blocks[stretches[i].block], inputs[worker],
                            stretches[i]);
      }));
  const std::vector<JoinedBlock> joined = join(blocks.size(), stretches);
  std::vector<CompactBlock> coded;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    coded.push_back({blocks[i].tensor, blocks[i].block, 0, blocks[i].changes(), joined[i].index,
                     joined[i].tiles});
  }
  return encode_compact_frame(context, layout, dtype, std::span(&table, 1), coded, out);
}

}  // namespace driftless
