// SPDX-License-Identifier: Apache-2.0
// Frames of `compact`: each block has an index of its tiles in place of positions, and the coded
// tiles in place of values; the tables follow the rows.
#include <algorithm>
#include <limits>

#include "formats/frame.h"
#include "formats/frame_parts.h"

namespace driftless {

Status check_compact_entries(const WeightLayout& layout, DType dtype,
                             std::span<const BucketEntry> entries,
                             std::span<const FrameBlock> blocks, StatusCode code) {
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const BucketEntry& entry = entries[i];
    if (entry.tensor >= layout.size() ||
        (entry.block != nullptr && entry.block->tensor != entry.tensor)) {
      return error(code, "compact frame: tensor ", entry.tensor, " is not below ", layout.size());
    }
    const TensorSpec& tensor = layout[entry.tensor];
    if (tensor.dtype != dtype) {
      return error(code, "compact frame: tensor '", tensor.name, "' is ", info(tensor.dtype).name,
                   ", the frame holds ", info(dtype).name);
    }
    const std::uint64_t units = entry.block != nullptr ? entry.block->place.units : tensor.units();
    if (blocks[i].changes == 0 || blocks[i].changes > units) {
      return error(code, "compact frame: tensor '", tensor.name, "': ", blocks[i].changes,
                   " changes of ", units, " units");
    }
  }
  const Status apart = check_apart(layout, entries, false);
  return apart.ok() ? apart : error(code, "compact frame: ", apart.message());
}

Status encode_compact_frame(const FrameContext& context, const WeightLayout& layout, DType dtype,
                            std::span<const CompactTable> tables,
                            std::span<const CompactBlock> blocks, std::vector<std::byte>& out) {
  if (context.encoding != Encoding::kCompact || !compact_fields(dtype) ||
      tables.size() > kMaxCompactTables ||
      blocks.size() > std::numeric_limits<std::uint32_t>::max()) {
    return error(StatusCode::kInvalidArgument, "blocks of 'compact' cannot go into a frame of ",
                 info(context.encoding).name, " and ", info(dtype).name, " with ", tables.size(),
                 " tables");
  }
  std::vector<BucketEntry> entries;
  std::vector<FrameBlock> rows;
  std::vector<std::byte> indices, coded_tables;
  std::vector<std::span<const std::byte>> values;
  std::uint64_t value_end = 0;
  std::size_t used = 0;
  for (const CompactBlock& block : blocks) {
    if (block.table > used || block.table >= tables.size()) {
      return error(StatusCode::kInvalidArgument,
                   "compact frame: tables are not in the order of their first use");
    }
    used = std::max<std::size_t>(used, block.table + 1);
    BucketEntry entry{block.tensor, block.table, indices.size(), 0, value_end, 0, block.block};
    indices.insert(indices.end(), block.index.begin(), block.index.end());
    entry.position_end = indices.size();
    entry.value_end = value_end += block.tiles.size();
    entries.push_back(entry);
    rows.push_back({0, {}, {}, {}, block.changes});
    values.push_back(block.tiles);
  }
  if (used != tables.size()) {
    return error(StatusCode::kInvalidArgument, "compact frame: of ", tables.size(), " tables only ",
                 used, " are used");
  }
  DRIFTLESS_RETURN_IF_ERROR(
      check_compact_entries(layout, dtype, entries, rows, StatusCode::kInvalidArgument));
  for (const CompactTable& table : tables) append_compact_table(table, coded_tables);
  return append_frame(context, {dtype, entries, std::move(rows), indices, values, coded_tables},
                      out);
}

std::vector<CompactBlock> Frame::compact_blocks() const {
  std::vector<CompactBlock> blocks;
  if (!compact()) return blocks;
  blocks.reserve(head_.entries.size());
  for (std::size_t i = 0; i < head_.entries.size(); ++i) {
    const BucketEntry& entry = head_.entries[i];
    blocks.push_back(
        {entry.tensor, entry.block, entry.position_bytes, head_.blocks[i].changes,
         positions_.subspan(entry.position_begin, entry.position_end - entry.position_begin),
         values_.subspan(entry.value_begin, entry.count())});
  }
  return blocks;
}

std::span<const CompactTable> Frame::compact_tables() const {
  if (head_.tables == nullptr) return {};
  return *head_.tables;
}

Result<CompactIndex> Frame::read_index(const WeightLayout& layout, const CompactBlock& block) {
  const TensorSpec& tensor = layout[block.tensor];
  const std::optional<CompactFields> fields = compact_fields(tensor.dtype);
  if (!fields) {
    return error(StatusCode::kCorrupt, "tensor '", tensor.name,
                 "': ", driftless::info(tensor.dtype).name, " is not coded by 'compact'");
  }
  Result<CompactIndex> index = read_compact_index(*fields, block.index, block.units(layout),
                                                  block.changes, block.tiles.size());
  return std::move(index).with_context(concat("tensor '", tensor.name, "'"));
}

}  // namespace driftless
