// SPDX-License-Identifier: Apache-2.0
#include "formats/frame_head.h"

#include <limits>

#include "formats/frame_parts.h"

namespace driftless {
namespace {

Status check_plain(Encoding encoding) {
  if (!is_compressed(encoding)) return {};
  return error(StatusCode::kUnsupported, "a frame of ", info(encoding).name,
               " has no head of its own: its body is compressed as one; use indices or deltas");
}

Status check_shape(const FrameContext& context, const BucketShape& bucket) {
  if (is_full(context.encoding) || !info(context.encoding).positional ||
      bucket.coding != coding_of(context.encoding)) {
    return error(StatusCode::kInvalidArgument, "a bucket of ", info(bucket.coding).name,
                 " cannot go into a frame of ", info(context.encoding).name);
  }
  if (bucket.entries.size() > std::numeric_limits<std::uint32_t>::max() ||
      bucket.positions_bytes > kMaxStreamBytes || bucket.values_bytes > kMaxStreamBytes) {
    return error(StatusCode::kInvalidArgument,
                 "a bucket of 2^32 entries or more, or with a stream of more than 2^60 bytes");
  }
  return check_tiles(bucket);
}

EncodedFrameHead put_together(const FrameInfo& info, std::span<const BucketEntry> entries,
                              std::span<const std::byte> firsts) {
  EncodedFrameHead head;
  head.places = frame_places(info);
  head.frame_bytes = info.frame_bytes;
  const FrameHeaderBytes header = make_frame_header(info);
  const std::vector<std::byte> table = make_frame_table(entries);
  head.bytes.reserve(head.places.head_bytes);
  head.bytes.insert(head.bytes.end(), header.begin(), header.end());
  head.bytes.insert(head.bytes.end(), table.begin(), table.end());
  head.bytes.insert(head.bytes.end(), firsts.begin(), firsts.end());
  return head;
}

}  // namespace

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
  DRIFTLESS_RETURN_IF_ERROR(check_shape(context, bucket));
  return put_together(plain_frame(context, bucket.dtype, bucket.entries.size(),
                                  bucket.positions_bytes, bucket.values_bytes),
                      bucket.entries, {});
}

Result<EncodedFrameHead> encode_full_frame_head(const FrameContext& context,
                                                const WeightLayout& layout, DType dtype,
                                                std::span<const RunPlace> runs) {
  if (!is_full(context.encoding)) {
    return error(StatusCode::kInvalidArgument, "runs cannot go into a frame of ",
                 info(context.encoding).name);
  }
  if (runs.size() > std::numeric_limits<std::uint32_t>::max()) {
    return error(StatusCode::kInvalidArgument, "a full frame of 2^32 runs or more");
  }
  DRIFTLESS_RETURN_IF_ERROR(check_runs(layout, dtype, runs, StatusCode::kInvalidArgument));
  const std::vector<std::byte> firsts = run_firsts(runs);
  const std::uint64_t units = runs.empty() ? 0 : runs.back().value_begin + runs.back().units;
  return put_together(
      plain_frame(context, dtype, runs.size(), firsts.size(), units * unit_bytes(dtype)),
      run_entries(runs), firsts);
}

std::array<std::byte, kFrameTrailerBytes> frame_trailer(const Hash128& hash) {
  std::array<std::byte, kFrameTrailerBytes> trailer;
  FieldWriter(trailer.data()).put(hash);
  return trailer;
}

Hash128 read_frame_trailer(std::span<const std::byte, kFrameTrailerBytes> trailer) {
  return FieldReader(trailer.data()).get_hash();
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
  if (info.context.layout != layout.signature()) {
    return error(StatusCode::kWrongLayout, "frame: made for layout ", to_hex(info.context.layout),
                 ", ours is ", to_hex(layout.signature()));
  }
  head.places = frame_places(info);
  const std::uint64_t table_bytes = head.places.positions - kFrameHeaderBytes;
  DRIFTLESS_ASSIGN_OR_RETURN(head.entries,
                             read_frame_table(info, front.subspan(kFrameHeaderBytes, table_bytes)));
  if (is_full(info.context.encoding)) {
    const auto firsts = front.subspan(head.places.positions, info.positions_bytes);
    DRIFTLESS_ASSIGN_OR_RETURN(head.runs, read_runs(info, layout, head.entries, firsts));
    head.entries.clear();
    return head;
  }
  const BucketShape bucket{coding_of(info.context.encoding), info.dtype, head.entries,
                           info.positions_bytes, info.values_bytes};
  DRIFTLESS_RETURN_IF_ERROR(check_bucket(layout, bucket).with_context("frame"));
  return head;
}

Result<Frame> Frame::decode_front(std::span<const std::byte> front,
                                  std::span<const std::byte> frame, const WeightLayout& layout,
                                  std::uint64_t max_body_bytes) {
  DRIFTLESS_ASSIGN_OR_RETURN(FrameHead head, decode_frame_head(front, layout));
  if (frame.size() != head.info.frame_bytes || head.info.body_bytes > max_body_bytes) {
    return error(StatusCode::kCorrupt, "frame: ", frame.size(), " bytes, the header states ",
                 head.info.frame_bytes, " with a body of ", head.info.body_bytes, ", at most ",
                 max_body_bytes, " are expected");
  }
  Frame result;
  result.info_ = head.info;
  result.positions_ = frame.subspan(head.places.positions, head.info.positions_bytes);
  result.values_ = frame.subspan(head.places.values, head.info.values_bytes);
  result.entries_ = std::move(head.entries);
  if (!head.runs.empty()) result.entries_ = run_entries(head.runs);
  for (const RunPlace& run : head.runs) result.first_units_.push_back(run.first_unit);
  return result;
}

}  // namespace driftless
