// SPDX-License-Identifier: Apache-2.0
// The table of a frame: a row for each block.
#include <algorithm>
#include <limits>
#include <optional>

#include "formats/frame_parts.h"

namespace driftless {
namespace {

constexpr std::uint8_t kPlain = 0, kZstd = 1;  // how a stream is stored
// Flags. kByteTiles: one-byte units are in tiles of 65536; older releases had tiles of 16384.
constexpr std::uint8_t kNeedsOldValues = 1, kByteTiles = 2;

constexpr std::uint8_t flags_of(const FrameInfo& info) {
  if (!is_compact(info.context.encoding)) return 0;
  return kNeedsOldValues | (unit_bytes(info.dtype) == 1 ? kByteTiles : 0);
}

// A row's fixed fields, in their order.
struct Row {
  std::uint32_t tensor = 0;
  std::uint8_t encoding = 0, dtype = 0, dims = 0, position_bytes = 0;
  std::uint8_t positions_stored = kPlain, values_stored = kPlain, flags = 0, more_streams = 0;
  std::uint32_t scale = kNoScale;
  std::uint64_t first_unit = 0, count = 0, stored_positions = 0, stored_values = 0;
  Hash128 hash;
};

template <typename R, typename Field>
void each_row_field(R& row, const Field& field) {
  field(row.tensor);
  field(row.encoding);
  field(row.dtype);
  field(row.dims);
  field(row.position_bytes);
  field(row.positions_stored);
  field(row.values_stored);
  field(row.flags);
  field(row.more_streams);
  field(row.scale);
  field(row.first_unit);
  field(row.count);
  field(row.stored_positions);
  field(row.stored_values);
  field(row.hash);
}

Row row_of(const FrameInfo& info, const BucketEntry& entry, const FrameBlock& block) {
  Row row;
  row.tensor = entry.tensor;
  row.encoding = static_cast<std::uint8_t>(row_encoding(info.context.encoding));
  row.dtype = static_cast<std::uint8_t>(info.dtype);
  row.dims = static_cast<std::uint8_t>(entry.block != nullptr ? entry.block->box.sizes.size() : 0);
  row.position_bytes = static_cast<std::uint8_t>(entry.position_bytes);
  row.positions_stored = block.positions.zstd ? kZstd : kPlain;
  row.values_stored = block.values.zstd ? kZstd : kPlain;
  row.flags = flags_of(info);
  row.first_unit = block.first_unit;
  row.count = is_compact(info.context.encoding) ? block.changes : entry.count();
  row.stored_positions = block.positions.size_bytes;
  row.stored_values = block.values.size_bytes;
  row.hash = block.hash;
  return row;
}

std::size_t row_bytes(const BucketEntry& entry) {
  const std::size_t dims = entry.block != nullptr ? entry.block->box.sizes.size() : 0;
  return kFrameRowBytes + dims * kFrameDimBytes;
}

// Reads rows in order, and checks each against the rest of the streams.
class TableReader {
 public:
  TableReader(std::span<const std::byte> table, const WeightLayout& layout, FrameHead& head)
      : rest_(table), layout_(layout), head_(head), info_(head.info) {
    positions_at_ = head.places.positions;
    values_at_ = head.places.values;
  }

  Status read() {
    head_.entries.reserve(info_.entries);  // the header check bounds it by the table's size
    head_.blocks.reserve(info_.entries);
    for (std::uint32_t i = 0; i < info_.entries; ++i) {
      DRIFTLESS_RETURN_IF_ERROR(read_row().with_context(concat("frame: row ", i)));
    }
    if (compact_) DRIFTLESS_RETURN_IF_ERROR(read_tables());
    if (!rest_.empty() || positions_end_ != info_.positions_bytes ||
        value_end_ * value_unit(info_) != info_.values_bytes ||
        positions_at_ != head_.places.positions + info_.stored_positions_bytes ||
        values_at_ != head_.places.values + info_.stored_values_bytes) {
      return error(StatusCode::kCorrupt, "frame: its rows have ", positions_end_,
                   " bytes of positions and ", value_end_, " values, the header states ",
                   info_.positions_bytes, " and ", info_.values_bytes, " bytes");
    }
    return {};
  }

 private:
  Status read_row() {
    if (rest_.size() < kFrameRowBytes) return error(StatusCode::kCorrupt, "is incomplete");
    Row row;
    FieldReader fields(rest_.data());
    each_row_field(row, [&]<typename T>(T& value) { value = fields.get<T>(); });
    rest_ = rest_.subspan(kFrameRowBytes);
    DRIFTLESS_RETURN_IF_ERROR(check(row));
    DRIFTLESS_ASSIGN_OR_RETURN(const TensorBlock* const block, read_box(row));
    BucketEntry entry{row.tensor, row.position_bytes, positions_end_, 0, value_end_, 0, block};
    const std::uint64_t position_bytes =
        compact_ ? row.stored_positions : row.count * row.position_bytes;
    const std::uint64_t values = compact_ ? row.stored_values : row.count;
    entry.position_end = positions_end_ += position_bytes;
    entry.value_end = value_end_ += values;
    FrameBlock stored;
    stored.first_unit = row.first_unit;
    stored.hash = row.hash;
    stored.changes = compact_ ? row.count : 0;
    DRIFTLESS_ASSIGN_OR_RETURN(
        stored.positions,
        read_stream(row.positions_stored, row.stored_positions, position_bytes, positions_at_,
                    head_.places.positions + info_.stored_positions_bytes));
    DRIFTLESS_ASSIGN_OR_RETURN(
        stored.values, read_stream(row.values_stored, row.stored_values, values * value_unit(info_),
                                   values_at_, head_.places.values + info_.stored_values_bytes));
    head_.entries.push_back(entry);
    head_.blocks.push_back(stored);
    return {};
  }

  [[nodiscard]] Status check(const Row& row) const {
    if ((row.flags == kNeedsOldValues && !compact_) || row.more_streams != 0 ||
        row.scale != kNoScale) {
      return error(StatusCode::kUnsupported, "tensor ", row.tensor,
                   ": needs old values, further streams or a scale, which this build does not "
                   "read; use the same release on both sides");
    }
    if (compact_ && row.flags == kNeedsOldValues && flags_of(info_) != kNeedsOldValues) {
      return error(StatusCode::kUnsupported, "tensor ", row.tensor, ": 'compact' of ",
                   driftless::info(info_.dtype).name,
                   " in tiles of 16384, which an earlier release wrote and this one does not read; "
                   "use the same release on both sides");
    }
    const bool full = is_full(info_.context.encoding);
    const auto encoding = static_cast<std::uint8_t>(row_encoding(info_.context.encoding));
    if (row.encoding != encoding || row.dtype != static_cast<std::uint8_t>(info_.dtype) ||
        row.flags != flags_of(info_) || (full ? row.position_bytes != 0 : row.first_unit != 0)) {
      return error(StatusCode::kCorrupt, "tensor ", row.tensor, ": encoding ", +row.encoding,
                   ", dtype ", +row.dtype, ", flags ", +row.flags, ", width ", +row.position_bytes,
                   ", first unit ", row.first_unit, ", which does not match the header");
    }
    if (row.tensor >= layout_.size()) {
      return error(StatusCode::kCorrupt, "tensor ", row.tensor, " is not below ", layout_.size());
    }
    if (compact_) return check_compact(row);
    // Keeps all sums within the sizes of the streams, so that they cannot overflow.
    const std::uint64_t units = info_.values_bytes / unit_bytes(info_.dtype) - value_end_;
    if (row.count > units || row.position_bytes > 8) {
      return error(StatusCode::kCorrupt, "tensor '", layout_[row.tensor].name, "': ", row.count,
                   " units with positions of ", +row.position_bytes, " bytes, but only ", units,
                   " values are left");
    }
    return {};
  }

  // Streams of `compact` are stored without zstd, so their stored size is their size.
  [[nodiscard]] Status check_compact(const Row& row) const {
    if (row.stored_positions <= info_.positions_bytes - positions_end_ &&
        row.stored_values <= info_.values_bytes - value_end_) {
      return {};
    }
    return error(StatusCode::kCorrupt, "tensor '", layout_[row.tensor].name,
                 "': ", row.stored_positions, " and ", row.stored_values,
                 " bytes, more than the streams have left");
  }

  // Reads the tables after the rows: as many as rows name, in the order of their first use.
  Status read_tables() {
    const std::optional<CompactFields> fields = compact_fields(info_.dtype);
    if (!fields) {
      return error(StatusCode::kCorrupt, "frame: ", driftless::info(info_.dtype).name,
                   " is not coded by 'compact'");
    }
    unsigned count = 0;
    for (const BucketEntry& entry : head_.entries) {
      if (entry.position_bytes > count) {
        return error(StatusCode::kCorrupt, "frame: tensor ", entry.tensor, " has table ",
                     entry.position_bytes, ", expected at most ", count,
                     ", because tables are numbered in the order of their first use");
      }
      count = std::max(count, entry.position_bytes + 1);
    }
    auto tables = std::make_shared<std::vector<CompactTable>>();
    for (unsigned i = 0; i < count; ++i) {
      DRIFTLESS_ASSIGN_OR_RETURN(CompactTable table, read_compact_table(*fields, rest_));
      tables->push_back(std::move(table));
    }
    head_.tables = std::move(tables);
    return {};
  }

  // Consecutive rows of one box share it.
  Result<const TensorBlock*> read_box(const Row& row) {
    if (row.dims == 0) return nullptr;
    if (rest_.size() < row.dims * kFrameDimBytes) {
      return error(StatusCode::kCorrupt, "is incomplete");
    }
    TensorBox box;
    FieldReader fields(rest_.data());
    for (unsigned d = 0; d < row.dims; ++d) {
      box.offsets.push_back(fields.get<std::uint64_t>());
      box.sizes.push_back(fields.get<std::uint64_t>());
    }
    rest_ = rest_.subspan(row.dims * kFrameDimBytes);
    const TensorBlock* const last = head_.entries.empty() ? nullptr : head_.entries.back().block;
    if (last != nullptr && last->tensor == row.tensor && last->box == box) return last;
    DRIFTLESS_ASSIGN_OR_RETURN(TensorBlock block,
                               TensorBlock::make(row.tensor, layout_[row.tensor], std::move(box)));
    head_.cut.push_back(std::make_unique<const TensorBlock>(std::move(block)));
    return head_.cut.back().get();
  }

  // Reads a stream's place and advances `at` past it.
  [[nodiscard]] Result<FrameStream> read_stream(std::uint8_t stored_as, std::uint64_t stored,
                                                std::uint64_t content, std::uint64_t& at,
                                                std::uint64_t end) const {
    const bool zstd = stored_as == kZstd;
    const bool allowed = zstd ? is_compressed(info_.context.encoding) && stored < content
                              : stored_as == kPlain && stored == content;
    if (!allowed || stored > end - at) {
      return error(StatusCode::kCorrupt, "a stream of ", content, " bytes is stored in ", stored,
                   zstd ? " under zstd" : "", ", with ", end - at, " left");
    }
    const FrameStream stream{at, stored, zstd};
    at += stored;
    return stream;
  }

  std::span<const std::byte> rest_;
  const WeightLayout& layout_;
  FrameHead& head_;
  const FrameInfo& info_;
  const bool compact_ = is_compact(info_.context.encoding);
  std::uint64_t positions_end_ = 0, value_end_ = 0;  // before compression
  std::uint64_t positions_at_ = 0, values_at_ = 0;   // in the frame
};

}  // namespace

std::uint64_t frame_table_bytes(std::span<const BucketEntry> entries) {
  std::uint64_t bytes = 0;
  for (const BucketEntry& entry : entries) bytes += row_bytes(entry);
  return bytes;
}

std::vector<std::byte> make_frame_table(const FrameInfo& info, std::span<const BucketEntry> entries,
                                        std::span<const FrameBlock> blocks) {
  std::vector<std::byte> table(frame_table_bytes(entries));
  std::byte* at = table.data();
  for (std::size_t i = 0; i < entries.size(); ++i) {
    FieldWriter fields(at);
    const Row row = row_of(info, entries[i], blocks[i]);
    each_row_field(row, [&](const auto& value) { fields.put(value); });
    if (const TensorBlock* const block = entries[i].block; block != nullptr) {
      for (std::size_t d = 0; d < block->box.sizes.size(); ++d) {
        fields.put(block->box.offsets[d]);
        fields.put(block->box.sizes[d]);
      }
    }
    at += row_bytes(entries[i]);
  }
  return table;
}

Status read_frame_table(std::span<const std::byte> table, const WeightLayout& layout,
                        FrameHead& head) {
  return TableReader(table, layout, head).read();
}

}  // namespace driftless
