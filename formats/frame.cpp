// SPDX-License-Identifier: Apache-2.0
#include "formats/frame.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstring>
#include <limits>

#include "formats/frame_parts.h"
#include "formats/zstd_stream.h"

namespace driftless {
namespace {

Status check_sizes(const FrameInfo& info) {
  if (info.positions_bytes > kMaxStreamBytes || info.values_bytes > kMaxStreamBytes ||
      info.stored_bytes > kMaxStreamBytes) {
    return error(StatusCode::kCorrupt, "frame header: a stream is larger than 2^60 bytes");
  }
  if (info.values_bytes % unit_bytes(info.dtype) != 0) {
    return error(StatusCode::kCorrupt, "frame header: ", info.values_bytes,
                 " bytes of values are not whole ", driftless::info(info.dtype).name);
  }
  if (is_full(info.context.encoding) &&
      info.positions_bytes != info.entries * std::uint64_t{kFirstUnitBytes}) {
    return error(StatusCode::kCorrupt, "frame header: ", info.positions_bytes,
                 " bytes of positions for ", info.entries, " runs, expected ", kFirstUnitBytes,
                 " each");
  }
  if (info.body_bytes != frame_body_bytes(info)) {
    return error(StatusCode::kCorrupt, "frame header: a body of ", info.body_bytes,
                 " bytes, expected ", frame_body_bytes(info));
  }
  if (!is_compressed(info.context.encoding) && info.stored_bytes != info.body_bytes) {
    return error(StatusCode::kCorrupt, "frame header: ", info.stored_bytes,
                 " bytes are stored of a plain body of ", info.body_bytes);
  }
  if (info.frame_bytes != kFrameHeaderBytes + info.stored_bytes + kFrameTrailerBytes) {
    return error(StatusCode::kCorrupt, "frame header: a frame of ", info.frame_bytes,
                 " bytes, expected ", kFrameHeaderBytes + info.stored_bytes + kFrameTrailerBytes);
  }
  return {};
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

// A width above 2 is canonical only where a gap needs it. Costs nothing for entries of width 2.
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

// The stream at the front of `rest`, which is moved past its padding.
Result<std::span<const std::byte>> take_stream(std::span<const std::byte>& rest,
                                               std::uint64_t bytes) {
  const auto stream = rest.first(bytes);
  for (const std::byte padding : rest.subspan(bytes, frame_aligned(bytes) - bytes)) {
    if (padding != std::byte{0}) {
      return error(StatusCode::kCorrupt, "frame: the padding of a stream is not zero");
    }
  }
  rest = rest.subspan(frame_aligned(bytes));
  return stream;
}

// The table against the layout, and the runs of a full frame, whose first units are `positions`.
Status check_entries(const WeightLayout& layout, std::span<const std::byte> positions,
                     FrameHead& head) {
  const FrameInfo& info = head.info;
  if (is_full(info.context.encoding)) {
    DRIFTLESS_ASSIGN_OR_RETURN(head.first_units, read_runs(info, layout, head.entries, positions));
    return {};
  }
  const BucketShape bucket{coding_of(info.context.encoding), info.dtype, head.entries,
                           info.positions_bytes, info.values_bytes};
  return check_bucket(layout, bucket).with_context("frame");
}

Status check_plain(Encoding encoding) {
  if (!is_compressed(encoding)) return {};
  return error(StatusCode::kUnsupported, "a frame of ", info(encoding).name,
               " has no head of its own: its body is compressed as one; use indices or deltas");
}

}  // namespace

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
  if (!info(context.encoding).positional && !is_full(context.encoding)) {
    return error(StatusCode::kCorrupt, "frame header: encoding ", info(context.encoding).name,
                 " does not travel in frames");
  }
  DRIFTLESS_ASSIGN_OR_RETURN(result.dtype, dtype_from_wire(fields.get<std::uint8_t>()));
  each_header_field(result, [&]<typename T>(T& value) { value = fields.get<T>(); });
  if (fields.get<std::uint64_t>() != 0) {
    return error(StatusCode::kCorrupt, "frame header: a reserved field is not zero");
  }
  DRIFTLESS_RETURN_IF_ERROR(check_sizes(result));
  return result;
}

Result<Frame> Frame::decode(std::span<const std::byte> frame, const WeightLayout& layout,
                            std::uint64_t max_body_bytes) {
  Frame result;
  DRIFTLESS_ASSIGN_OR_RETURN(result.head_.info, read_frame_header(frame));
  const FrameInfo& info = result.info();
  if (frame.size() != info.frame_bytes) {
    return error(StatusCode::kCorrupt, "frame: ", frame.size(), " bytes, the header states ",
                 info.frame_bytes);
  }
  if (info.body_bytes > max_body_bytes) {
    return error(StatusCode::kCorrupt, "frame: a body of ", info.body_bytes, " bytes, at most ",
                 max_body_bytes, " are expected");
  }
  const auto hashed = frame.first(frame.size() - kFrameTrailerBytes);
  if (FieldReader(hashed.data() + hashed.size()).get<Hash128>() != xxh3_128(hashed)) {
    return error(StatusCode::kCorrupt, "frame: its hash does not match");
  }
  DRIFTLESS_RETURN_IF_ERROR(check_layout(info, layout));
  const auto stored = hashed.subspan(kFrameHeaderBytes);
  if (is_compressed(info.context.encoding)) {
    DRIFTLESS_RETURN_IF_ERROR(result.inflate(stored));
    DRIFTLESS_RETURN_IF_ERROR(result.read_body(result.inflated_.bytes()));
  } else {
    DRIFTLESS_RETURN_IF_ERROR(result.read_body(stored));
  }
  DRIFTLESS_RETURN_IF_ERROR(check_entries(layout, result.positions_, result.head_));
  const BucketView bucket = result.bucket();
  for (const BucketEntry& entry : bucket.entries) {
    DRIFTLESS_RETURN_IF_ERROR(check_least_width(layout, bucket, entry));
  }
  return result;
}

Status check_layout(const FrameInfo& info, const WeightLayout& layout) {
  if (info.context.layout == layout.signature()) return {};
  return error(StatusCode::kWrongLayout, "frame: made for layout ", to_hex(info.context.layout),
               ", ours is ", to_hex(layout.signature()));
}

Status Frame::inflate(std::span<const std::byte> stored) {
  DRIFTLESS_ASSIGN_OR_RETURN(ZstdReader zstd, ZstdReader::open(stored));
  if (zstd.content_bytes() != head_.info.body_bytes) {
    return error(StatusCode::kCorrupt, "frame: ", zstd.content_bytes(),
                 " bytes under zstd, the header states a body of ", head_.info.body_bytes);
  }
  std::byte* const body = inflated_.extend(head_.info.body_bytes);
  if (body == nullptr) {
    return error(StatusCode::kNoSpace, "no memory for a frame's body of ", head_.info.body_bytes,
                 " bytes");
  }
  DRIFTLESS_RETURN_IF_ERROR(zstd.read({body, head_.info.body_bytes}));
  return zstd.finish();
}

// `body` has the size that the header states, which is that of table and streams.
Status Frame::read_body(std::span<const std::byte> body) {
  const std::size_t table_bytes = head_.info.entries * std::size_t{kFrameEntryBytes};
  std::span<const std::byte> rest = body.subspan(table_bytes);
  DRIFTLESS_ASSIGN_OR_RETURN(positions_, take_stream(rest, head_.info.positions_bytes));
  DRIFTLESS_ASSIGN_OR_RETURN(values_, take_stream(rest, head_.info.values_bytes));
  DRIFTLESS_ASSIGN_OR_RETURN(head_.entries, read_frame_table(head_.info, body.first(table_bytes)));
  return {};
}

Result<std::vector<BucketEntry>> read_frame_table(const FrameInfo& info,
                                                  std::span<const std::byte> table) {
  const std::uint64_t units = info.values_bytes / unit_bytes(info.dtype);
  const bool dense = is_full(info.context.encoding);
  FieldReader fields(table.data());
  std::uint64_t position_end = 0, value_end = 0;
  std::vector<BucketEntry> entries;
  entries.reserve(info.entries);
  for (std::uint32_t i = 0; i < info.entries; ++i) {
    BucketEntry entry;
    entry.tensor = fields.get<std::uint32_t>();
    entry.position_bytes = fields.get<std::uint32_t>();
    const auto count = fields.get<std::uint64_t>();
    // Keeps both sums within the streams' sizes, so that they cannot overflow.
    if (count > units - value_end || entry.position_bytes > 8) {
      return error(StatusCode::kCorrupt, "frame: entry ", i, " has ", count,
                   " units with positions of ", entry.position_bytes,
                   " bytes, but the frame has only ", units, " values");
    }
    entry.position_begin = position_end;
    entry.value_begin = value_end;
    entry.position_end = position_end += (dense ? 1 : count) * entry.position_bytes;
    entry.value_end = value_end += count;
    entries.push_back(entry);
  }
  return entries;
}

BucketView Frame::bucket() const {
  if (dense()) return {Encoding::kIndices, info().dtype, {}, {}, {}};
  return {coding_of(info().context.encoding), info().dtype, head_.entries, positions_, values_};
}

FramePlaces frame_places(const FrameInfo& info) {
  FramePlaces places;
  places.positions = kFrameHeaderBytes + info.entries * std::uint64_t{kFrameEntryBytes};
  places.values = places.positions + frame_aligned(info.positions_bytes);
  places.trailer = places.values + frame_aligned(info.values_bytes);
  places.head_bytes = is_full(info.context.encoding) ? places.values : places.positions;
  return places;
}

Result<EncodedFrameHead> encode_frame_head(const FrameContext& context, const BucketShape& bucket) {
  DRIFTLESS_RETURN_IF_ERROR(check_plain(context.encoding));
  DRIFTLESS_RETURN_IF_ERROR(check_bucket_for(context, bucket));
  const FrameInfo info = plain_frame(context, bucket.dtype, bucket.entries.size(),
                                     bucket.positions_bytes, bucket.values_bytes);
  EncodedFrameHead head{{}, frame_places(info), info.frame_bytes};
  const FrameHeaderBytes header = make_frame_header(info);
  const std::vector<std::byte> table = make_frame_table(bucket.entries);
  head.bytes.assign(header.begin(), header.end());
  head.bytes.insert(head.bytes.end(), table.begin(), table.end());
  return head;
}

std::array<std::byte, kFrameTrailerBytes> frame_trailer(const Hash128& hash) {
  std::array<std::byte, kFrameTrailerBytes> trailer;
  FieldWriter(trailer.data()).put(hash);
  return trailer;
}

Result<std::uint64_t> frame_head_bytes(const FrameInfo& info) {
  DRIFTLESS_RETURN_IF_ERROR(check_plain(info.context.encoding));
  return frame_places(info).head_bytes;
}

Result<FrameHead> decode_frame_head(std::span<const std::byte> front, const WeightLayout& layout) {
  FrameHead head;
  DRIFTLESS_ASSIGN_OR_RETURN(head.info, read_frame_header(front));
  const FrameInfo& info = head.info;
  DRIFTLESS_ASSIGN_OR_RETURN(const std::uint64_t needed, frame_head_bytes(info));
  if (front.size() < needed) {
    return error(StatusCode::kCorrupt, "frame: ", front.size(), " bytes, but its head has ",
                 needed);
  }
  DRIFTLESS_RETURN_IF_ERROR(check_layout(info, layout));
  head.places = frame_places(info);
  const std::uint64_t table_bytes = head.places.positions - kFrameHeaderBytes;
  DRIFTLESS_ASSIGN_OR_RETURN(head.entries,
                             read_frame_table(info, front.subspan(kFrameHeaderBytes, table_bytes)));
  const std::uint64_t firsts = is_full(info.context.encoding) ? info.positions_bytes : 0;
  DRIFTLESS_RETURN_IF_ERROR(
      check_entries(layout, front.subspan(head.places.positions, firsts), head));
  return head;
}

Result<Frame> Frame::decode_front(std::span<const std::byte> front,
                                  std::span<const std::byte> frame, const WeightLayout& layout,
                                  std::uint64_t max_body_bytes) {
  Frame result;
  DRIFTLESS_ASSIGN_OR_RETURN(result.head_, decode_frame_head(front, layout));
  const FrameHead& head = result.head_;
  if (frame.size() != head.info.frame_bytes || head.info.body_bytes > max_body_bytes) {
    return error(StatusCode::kCorrupt, "frame: ", frame.size(), " bytes, the header states ",
                 head.info.frame_bytes, " with a body of ", head.info.body_bytes, ", at most ",
                 max_body_bytes, " are expected");
  }
  result.positions_ = frame.subspan(head.places.positions, head.info.positions_bytes);
  result.values_ = frame.subspan(head.places.values, head.info.values_bytes);
  return result;
}

}  // namespace driftless
