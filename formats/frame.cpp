// SPDX-License-Identifier: Apache-2.0
// Reading frames.
#include "formats/frame.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstring>
#include <limits>

#include "formats/frame_parts.h"

namespace driftless {
namespace {

Status check_sizes(const FrameInfo& info) {
  const std::uint64_t largest =
      std::max({info.positions_bytes, info.values_bytes, info.stored_positions_bytes,
                info.stored_values_bytes, info.table_bytes});
  if (largest > kMaxStreamBytes) {
    return error(StatusCode::kCorrupt, "frame header: a stream is larger than 2^60 bytes");
  }
  if (info.values_bytes % value_unit(info) != 0) {
    return error(StatusCode::kCorrupt, "frame header: ", info.values_bytes,
                 " bytes of values are not whole ", driftless::info(info.dtype).name);
  }
  if (is_full(info.context.encoding) && info.positions_bytes != 0) {
    return error(StatusCode::kCorrupt, "frame header: ", info.positions_bytes,
                 " bytes of positions in a full frame");
  }
  const bool same = info.stored_positions_bytes == info.positions_bytes &&
                    info.stored_values_bytes == info.values_bytes;
  if (!is_compressed(info.context.encoding) && !same) {
    return error(StatusCode::kCorrupt, "frame header: ", info.stored_positions_bytes, " and ",
                 info.stored_values_bytes, " stored bytes in uncompressed streams of ",
                 info.positions_bytes, " and ", info.values_bytes);
  }
  if (info.entries > info.table_bytes / kFrameRowBytes) {
    return error(StatusCode::kCorrupt, "frame header: ", info.entries, " rows in a table of ",
                 info.table_bytes, " bytes");
  }
  const std::uint64_t expected = frame_places(info).trailer + kFrameTrailerBytes;
  if (info.frame_bytes != expected) {
    return error(StatusCode::kCorrupt, "frame header: a frame of ", info.frame_bytes,
                 " bytes, expected ", expected);
  }
  return {};
}

Status check_layout(const FrameInfo& info, const WeightLayout& layout) {
  if (info.context.layout == layout.signature()) return {};
  return error(StatusCode::kWrongLayout, "frame: made for layout ", to_hex(info.context.layout),
               ", ours is ", to_hex(layout.signature()));
}

Status check_body(const FrameInfo& info, std::uint64_t most) {
  if (info.body_bytes() <= most) return {};
  return error(StatusCode::kCorrupt, "frame: a body of ", info.body_bytes(), " bytes, at most ",
               most, " are expected");
}

template <typename T>
bool has_gap_above(std::span<const std::byte> gaps, std::uint64_t limit) {
  for (std::size_t at = 0; at + sizeof(T) <= gaps.size(); at += sizeof(T)) {
    T gap;
    std::memcpy(&gap, gaps.data() + at, sizeof(T));
    if (gap > limit) return true;
  }
  return false;
}

// A width above 2 is canonical only if a gap needs it. No cost for entries of width 2.
Status check_least_width(const WeightLayout& layout, const BucketView& bucket,
                         const BucketEntry& entry) {
  if (bucket.coding == Encoding::kIndices || entry.position_bytes == 2) return {};
  const auto gaps =
      bucket.positions.subspan(entry.position_begin, entry.position_end - entry.position_begin);
  const bool needed =
      entry.position_bytes == 4
          ? has_gap_above<std::uint32_t>(gaps, std::numeric_limits<std::uint16_t>::max())
          : has_gap_above<std::uint64_t>(gaps, std::numeric_limits<std::uint32_t>::max());
  if (needed) return {};
  return error(StatusCode::kCorrupt, "frame: tensor '", layout[entry.tensor].name, "' has gaps of ",
               entry.position_bytes, " bytes where fewer are enough");
}

// Checks the padding after a stream that ends at `end`.
Status check_padding(std::span<const std::byte> frame, std::uint64_t end) {
  for (const std::byte padding : frame.subspan(end, frame_aligned(end) - end)) {
    if (padding != std::byte{0}) {
      return error(StatusCode::kCorrupt, "frame: the padding of a stream is not zero");
    }
  }
  return {};
}

Status check_all_padding(const FrameHead& head, std::span<const std::byte> frame) {
  DRIFTLESS_RETURN_IF_ERROR(
      check_padding(frame, head.places.positions + head.info.stored_positions_bytes));
  return check_padding(frame, head.places.values + head.info.stored_values_bytes);
}

Status wrong_hash(const WeightLayout& layout, const BucketEntry& entry, const Hash128& found,
                  const Hash128& expected) {
  return error(StatusCode::kCorrupt, "frame: tensor '", layout[entry.tensor].name, "'",
               entry.block != nullptr ? concat(" ", entry.block->box.to_string()) : "",
               " has hash ", to_hex(found), ", its row says ", to_hex(expected));
}

Status check_hashes(const WeightLayout& layout, const FrameHead& head,
                    std::span<const std::byte> frame) {
  for (std::size_t i = 0; i < head.entries.size(); ++i) {
    const FrameBlock& block = head.blocks[i];
    const Hash128 found =
        block_hash(xxh3_128(frame.subspan(block.positions.offset, block.positions.size_bytes)),
                   xxh3_128(frame.subspan(block.values.offset, block.values.size_bytes)));
    if (found != block.hash) return wrong_hash(layout, head.entries[i], found, block.hash);
  }
  return {};
}

// Reads a head. `info`: its header. `rest`: table and trailer.
Result<FrameHead> read_head(const FrameInfo& info, std::span<const std::byte> rest,
                            const WeightLayout& layout) {
  FrameHead head;
  head.info = info;
  head.places = frame_places(info);
  const auto table = rest.first(info.table_bytes);
  if (FieldReader(rest.data() + table.size()).get<Hash128>() != xxh3_128(table)) {
    return error(StatusCode::kCorrupt, "frame: the hash of its table does not match");
  }
  DRIFTLESS_RETURN_IF_ERROR(check_layout(info, layout));
  DRIFTLESS_RETURN_IF_ERROR(read_frame_table(table, layout, head));
  if (is_full(info.context.encoding)) {
    DRIFTLESS_RETURN_IF_ERROR(
        check_runs(layout, info.dtype, head.entries, head.blocks, StatusCode::kCorrupt));
  } else if (is_compact(info.context.encoding)) {
    DRIFTLESS_RETURN_IF_ERROR(
        check_compact_entries(layout, info.dtype, head.entries, head.blocks, StatusCode::kCorrupt));
  } else {
    const BucketShape bucket{coding_of(info.context.encoding), info.dtype, head.entries,
                             info.positions_bytes, info.values_bytes};
    DRIFTLESS_RETURN_IF_ERROR(check_bucket(layout, bucket).with_context("frame"));
  }
  return head;
}

// Reads header and table of a whole frame.
Result<FrameHead> open_frame(std::span<const std::byte> frame, const WeightLayout& layout,
                             std::uint64_t max_body_bytes) {
  DRIFTLESS_ASSIGN_OR_RETURN(const FrameInfo info, read_frame_header(frame));
  if (frame.size() != info.frame_bytes) {
    return error(StatusCode::kCorrupt, "frame: ", frame.size(), " bytes, the header states ",
                 info.frame_bytes);
  }
  DRIFTLESS_RETURN_IF_ERROR(check_body(info, max_body_bytes));
  return read_head(info, frame.subspan(frame_places(info).table), layout);
}

}  // namespace

Hash128 block_hash(const Hash128& positions, const Hash128& values) {
  std::array<std::byte, 32> both;
  FieldWriter fields(both.data());
  fields.put(positions);
  fields.put(values);
  return xxh3_128(both);
}

FramePlaces frame_places(const FrameInfo& info) {
  FramePlaces places;
  places.positions = kFrameHeaderBytes;
  places.values = places.positions + frame_aligned(info.stored_positions_bytes);
  places.table = places.values + frame_aligned(info.stored_values_bytes);
  places.trailer = places.table + info.table_bytes;
  return places;
}

Result<FrameInfo> read_frame_header(std::span<const std::byte> frame) {
  if (frame.size() < kFrameHeaderBytes) {
    return error(StatusCode::kCorrupt, "frame header: ", frame.size(), " bytes, expected ",
                 kFrameHeaderBytes);
  }
  if (std::memcmp(frame.data(), kFrameMagic.data(), kFrameMagic.size()) != 0) {
    return error(StatusCode::kCorrupt, "frame header: it does not begin with DRIFTLSF");
  }
  if (FieldReader(frame.data() + kFrameHeaderHashOffset).get<std::uint64_t>() !=
      XXH3_64bits(frame.data(), kFrameHeaderHashOffset)) {
    return error(StatusCode::kCorrupt, "frame header: its hash does not match");
  }
  FieldReader fields(frame.data() + kFrameMagic.size());
  if (const auto format = fields.get<std::uint16_t>(); format != kFrameFormat) {
    return error(StatusCode::kUnsupported, "frame header: format ", format, ", this build reads ",
                 kFrameFormat, "; use the same release on both sides");
  }
  FrameInfo result;
  FrameContext& context = result.context;
  DRIFTLESS_ASSIGN_OR_RETURN(context.encoding, encoding_from_wire(fields.get<std::uint8_t>()));
  if (!info(context.encoding).positional && !is_full(context.encoding) &&
      !is_compact(context.encoding)) {
    return error(StatusCode::kCorrupt, "frame header: encoding ", info(context.encoding).name,
                 " does not travel in frames");
  }
  DRIFTLESS_ASSIGN_OR_RETURN(result.dtype, dtype_from_wire(fields.get<std::uint8_t>()));
  each_header_field(result, [&]<typename T>(T& value) { value = fields.get<T>(); });
  DRIFTLESS_RETURN_IF_ERROR(check_sizes(result));
  return result;
}

Result<FrameHead> decode_frame_head(std::span<const std::byte> head, const WeightLayout& layout) {
  DRIFTLESS_ASSIGN_OR_RETURN(const FrameInfo info, read_frame_header(head));
  if (head.size() != kFrameHeaderBytes + info.table_bytes + kFrameTrailerBytes) {
    return error(StatusCode::kCorrupt, "frame: a head of ", head.size(), " bytes, expected ",
                 kFrameHeaderBytes + info.table_bytes + kFrameTrailerBytes);
  }
  return read_head(info, head.subspan(kFrameHeaderBytes), layout);
}

Hash128 frame_table_hash(std::span<const std::byte> end) {
  return FieldReader(end.last(kFrameTrailerBytes).data()).get<Hash128>();
}

Result<Frame> Frame::decode(std::span<const std::byte> frame, const WeightLayout& layout,
                            std::uint64_t max_body_bytes) {
  Frame result;
  DRIFTLESS_ASSIGN_OR_RETURN(result.head_, open_frame(frame, layout, max_body_bytes));
  DRIFTLESS_RETURN_IF_ERROR(check_hashes(layout, result.head_, frame));
  DRIFTLESS_RETURN_IF_ERROR(result.read_streams(frame));
  DRIFTLESS_RETURN_IF_ERROR(result.check_widths(layout));
  return result;
}

Status Frame::read_streams(std::span<const std::byte> frame) {
  const FrameInfo& stream_info = head_.info;
  const FramePlaces& places = head_.places;
  DRIFTLESS_RETURN_IF_ERROR(check_all_padding(head_, frame));
  if (is_compressed(stream_info.context.encoding)) return inflate(frame);
  positions_ = frame.subspan(places.positions, stream_info.positions_bytes);
  values_ = frame.subspan(places.values, stream_info.values_bytes);
  return {};
}

Status Frame::allocate(std::uint64_t positions_bytes, std::uint64_t values_bytes,
                       KeptMemory* memory) {
  const std::uint64_t values_at = frame_aligned(positions_bytes);
  inflated_ = take_memory(memory, values_at + values_bytes);
  if (inflated_ == nullptr) {
    return error(StatusCode::kNoSpace, "no memory for a frame's ", values_at + values_bytes,
                 " bytes of positions and values");
  }
  positions_ = {inflated_.get(), positions_bytes};
  values_ = {inflated_.get() + values_at, values_bytes};
  return {};
}

Status Frame::inflate(std::span<const std::byte> frame) {
  DRIFTLESS_RETURN_IF_ERROR(allocate(head_.info.positions_bytes, head_.info.values_bytes, nullptr));
  const std::uint64_t values_at = frame_aligned(head_.info.positions_bytes);
  const unsigned unit = unit_bytes(head_.info.dtype);
  ZstdUnpacker zstd;
  const auto read = [&](const FrameStream& stream, std::uint64_t at, std::uint64_t size) -> Status {
    const auto stored = frame.subspan(stream.offset, stream.size_bytes);
    const std::span<std::byte> to(inflated_.get() + at, size);
    if (stream.zstd) return zstd.read(stored, to);
    std::copy(stored.begin(), stored.end(), to.begin());
    return {};
  };
  for (std::size_t i = 0; i < head_.entries.size(); ++i) {
    const BucketEntry& entry = head_.entries[i];
    DRIFTLESS_RETURN_IF_ERROR(read(head_.blocks[i].positions, entry.position_begin,
                                   entry.position_end - entry.position_begin));
    DRIFTLESS_RETURN_IF_ERROR(
        read(head_.blocks[i].values, values_at + entry.value_begin * unit, entry.count() * unit));
  }
  return {};
}

Status Frame::check_widths(const WeightLayout& layout) const {
  const BucketView decoded = bucket();
  for (const BucketEntry& entry : decoded.entries) {
    DRIFTLESS_RETURN_IF_ERROR(check_least_width(layout, decoded, entry));
  }
  return {};
}

namespace {

// Ok if a frame can be used in memory that this process does not read.
Status check_usable_there(const FrameInfo& frame) {
  const Encoding encoding = frame.context.encoding;
  if (!is_compressed(encoding) && !is_compact(encoding)) return {};
  return error(StatusCode::kUnsupported, "a frame of ", info(encoding).name,
               " cannot be used in device memory: its streams are coded; use indices or deltas");
}

}  // namespace

Result<Frame> Frame::decode_head(std::span<const std::byte> head, std::span<const std::byte> frame,
                                 const WeightLayout& layout, std::uint64_t max_body_bytes) {
  Frame result;
  DRIFTLESS_ASSIGN_OR_RETURN(result.head_, decode_frame_head(head, layout));
  const FrameInfo& info = result.head_.info;
  DRIFTLESS_RETURN_IF_ERROR(check_usable_there(info));
  DRIFTLESS_RETURN_IF_ERROR(check_body(info, max_body_bytes));
  if (frame.size() != info.frame_bytes) {
    return error(StatusCode::kCorrupt, "frame: ", frame.size(), " bytes, the header states ",
                 info.frame_bytes);
  }
  result.positions_ = frame.subspan(result.head_.places.positions, info.positions_bytes);
  result.values_ = frame.subspan(result.head_.places.values, info.values_bytes);
  result.memory_ = MemoryKind::kDevice;
  return result;
}

BucketView Frame::bucket() const {
  if (dense() || compact()) return {Encoding::kIndices, info().dtype, {}, {}, {}};
  return {coding_of(info().context.encoding), info().dtype, head_.entries, positions_, values_};
}

Result<FrameReader> FrameReader::open(std::span<const std::byte> frame, const WeightLayout& layout,
                                      std::uint64_t max_body_bytes, KeptMemory* memory) {
  FrameReader reader;
  Frame& opened = reader.frame_;
  DRIFTLESS_ASSIGN_OR_RETURN(opened.head_, open_frame(frame, layout, max_body_bytes));
  const FrameInfo& info = opened.head_.info;
  if (is_compressed(info.context.encoding)) {
    DRIFTLESS_RETURN_IF_ERROR(opened.allocate(info.positions_bytes, info.values_bytes, memory));
  }
  reader.bytes_ = frame;
  reader.hashes_.resize(reader.streams());
  return reader;
}

Status FrameReader::read(std::size_t stream, ZstdUnpacker& zstd) {
  const FrameStream& source = stream_of(stream);
  const auto stored = bytes_.subspan(source.offset, source.size_bytes);
  hashes_[stream] = xxh3_128(stored);
  if (!is_compressed(frame_.head_.info.context.encoding)) return {};
  const BucketEntry& entry = frame_.head_.entries[stream / 2];
  const unsigned unit = unit_bytes(frame_.head_.info.dtype);
  const bool values = stream % 2 == 1;
  const std::uint64_t at =
      values ? frame_aligned(frame_.head_.info.positions_bytes) + entry.value_begin * unit
             : entry.position_begin;
  const std::uint64_t size =
      values ? entry.count() * unit : entry.position_end - entry.position_begin;
  const std::span<std::byte> to(frame_.inflated_.get() + at, size);
  if (source.zstd) return zstd.read(stored, to);
  std::copy(stored.begin(), stored.end(), to.begin());
  return {};
}

Result<Frame> FrameReader::finish(const WeightLayout& layout) {
  const FrameHead& head = frame_.head_;
  for (std::size_t i = 0; i < head.entries.size(); ++i) {
    const Hash128 found = block_hash(hashes_[2 * i], hashes_[2 * i + 1]);
    if (found != head.blocks[i].hash) {
      return wrong_hash(layout, head.entries[i], found, head.blocks[i].hash);
    }
  }
  if (is_compressed(head.info.context.encoding)) {
    DRIFTLESS_RETURN_IF_ERROR(check_all_padding(head, bytes_));
  } else {
    DRIFTLESS_RETURN_IF_ERROR(frame_.read_streams(bytes_));
  }
  DRIFTLESS_RETURN_IF_ERROR(frame_.check_widths(layout));
  return std::move(frame_);
}

Result<FrameCollector> FrameCollector::open(std::span<const std::byte> head,
                                            const WeightLayout& layout,
                                            std::uint64_t max_body_bytes, const Needed& needed,
                                            KeptMemory* memory) {
  DRIFTLESS_ASSIGN_OR_RETURN(FrameCollector collector, plan(head, layout, max_body_bytes, needed));
  DRIFTLESS_RETURN_IF_ERROR(
      collector.frame_.allocate(collector.positions_bytes_, collector.values_bytes_, memory));
  return collector;
}

Result<FrameCollector> FrameCollector::open_on_device(std::span<const std::byte> head,
                                                      const WeightLayout& layout,
                                                      std::uint64_t max_body_bytes,
                                                      const Needed& needed) {
  DRIFTLESS_ASSIGN_OR_RETURN(FrameCollector collector, plan(head, layout, max_body_bytes, needed));
  DRIFTLESS_RETURN_IF_ERROR(check_usable_there(collector.frame_.head_.info));
  collector.frame_.memory_ = MemoryKind::kDevice;
  return collector;
}

std::uint64_t FrameCollector::device_bytes() const {
  return frame_aligned(positions_bytes_) + values_bytes_;
}

void FrameCollector::place(std::shared_ptr<std::byte> memory_dev) {
  frame_.inflated_ = std::move(memory_dev);
  frame_.positions_ = {frame_.inflated_.get(), positions_bytes_};
  frame_.values_ = {frame_.inflated_.get() + frame_aligned(positions_bytes_), values_bytes_};
}

void FrameCollector::prove(std::size_t range, const Hash128& hash) {
  const Stream& stream = streams_[range];
  hashes_[2 * stream.entry + (stream.values ? 1 : 0)] = hash;
}

Result<FrameCollector> FrameCollector::plan(std::span<const std::byte> head,
                                            const WeightLayout& layout,
                                            std::uint64_t max_body_bytes, const Needed& needed) {
  DRIFTLESS_ASSIGN_OR_RETURN(FrameHead read, decode_frame_head(head, layout));
  DRIFTLESS_RETURN_IF_ERROR(check_body(read.info, max_body_bytes));
  FrameCollector collector;
  Frame& frame = collector.frame_;
  const unsigned unit = value_unit(read.info);
  std::uint64_t positions = 0, units = 0;
  for (std::size_t i = 0; i < read.entries.size(); ++i) {
    BucketEntry entry = read.entries[i];
    if (!needed(entry)) {
      frame.others_.push_back(entry);
      frame.other_first_units_.push_back(read.blocks[i].first_unit);
      continue;
    }
    const std::uint64_t position_bytes = entry.position_end - entry.position_begin;
    const std::uint64_t count = entry.count();
    entry.position_begin = positions;
    entry.position_end = positions += position_bytes;
    entry.value_begin = units;
    entry.value_end = units += count;
    frame.head_.entries.push_back(entry);
    frame.head_.blocks.push_back(read.blocks[i]);
  }
  collector.positions_bytes_ = positions;
  collector.values_bytes_ = units * unit;
  const std::uint64_t values_at = frame_aligned(positions);
  const auto want = [&](bool values) {
    for (std::size_t i = 0; i < frame.head_.entries.size(); ++i) {
      const BucketEntry& entry = frame.head_.entries[i];
      const FrameStream& stream =
          values ? frame.head_.blocks[i].values : frame.head_.blocks[i].positions;
      if (stream.size_bytes == 0) continue;
      collector.ranges_.push_back({stream.offset, stream.size_bytes});
      collector.streams_.push_back(
          {i, values, stream.zstd,
           values ? values_at + entry.value_begin * unit : entry.position_begin,
           values ? entry.count() * unit : entry.position_end - entry.position_begin});
    }
  };
  want(false);
  want(true);
  frame.head_.info = read.info;
  frame.head_.places = read.places;
  frame.head_.cut = std::move(read.cut);
  frame.head_.tables = std::move(read.tables);
  collector.hashes_.assign(2 * frame.head_.entries.size(), xxh3_128(std::string_view()));
  return collector;
}

Status FrameCollector::take(std::size_t range, std::span<const std::byte> bytes) {
  const Stream& stream = streams_[range];
  if (bytes.size() != ranges_[range].size_bytes) {
    return error(StatusCode::kCorrupt, "frame: ", bytes.size(), " bytes came from offset ",
                 ranges_[range].offset, ", expected ", ranges_[range].size_bytes);
  }
  Hash128& hash = hashes_[2 * stream.entry + (stream.values ? 1 : 0)];
  const std::span<std::byte> to(frame_.inflated_.get() + stream.at, stream.content_bytes);
  // Hashes a copy: the bytes may be a mapping of a file that another process writes.
  if (stream.zstd) {
    const std::vector<std::byte> held(bytes.begin(), bytes.end());
    hash = xxh3_128(held);
    return ZstdUnpacker().read(held, to);
  }
  std::copy(bytes.begin(), bytes.end(), to.begin());
  hash = xxh3_128(to);
  return {};
}

Result<Frame> FrameCollector::finish(const WeightLayout& layout) {
  for (std::size_t i = 0; i < frame_.head_.entries.size(); ++i) {
    const Hash128 found = block_hash(hashes_[2 * i], hashes_[2 * i + 1]);
    const Hash128& expected = frame_.head_.blocks[i].hash;
    if (found != expected) return wrong_hash(layout, frame_.head_.entries[i], found, expected);
  }
  if (frame_.memory_ == MemoryKind::kDevice) return std::move(frame_);
  DRIFTLESS_RETURN_IF_ERROR(frame_.check_widths(layout));
  return std::move(frame_);
}

}  // namespace driftless
