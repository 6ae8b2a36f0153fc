// SPDX-License-Identifier: Apache-2.0
// How frames are written: encode_frame(), write_frame(), append_frame().
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <limits>

#include "formats/frame.h"
#include "formats/frame_parts.h"
#include "formats/zstd_stream.h"

namespace driftless {
namespace {

Status write_padding(std::uint64_t stream_bytes, const ByteSink& sink) {
  constexpr std::array<std::byte, kFrameAlignment> kPadding{};
  return sink(std::span(kPadding).first(frame_aligned(stream_bytes) - stream_bytes));
}

Status write_body(const FrameInfo& info, const FrameParts& parts, const ByteSink& sink) {
  DRIFTLESS_RETURN_IF_ERROR(sink(make_frame_table(parts.entries)));
  DRIFTLESS_RETURN_IF_ERROR(sink(parts.positions));
  DRIFTLESS_RETURN_IF_ERROR(write_padding(info.positions_bytes, sink));
  for (const std::span<const std::byte> piece : parts.values) {
    DRIFTLESS_RETURN_IF_ERROR(sink(piece));
  }
  return write_padding(info.values_bytes, sink);
}

ByteSink append_to(std::vector<std::byte>& out) {
  return [&out](std::span<const std::byte> bytes) {
    out.insert(out.end(), bytes.begin(), bytes.end());
    return Status();
  };
}

Status compress_body(const FrameInfo& info, const FrameParts& parts, std::vector<std::byte>& out) {
  DRIFTLESS_ASSIGN_OR_RETURN(ZstdWriter zstd,
                             ZstdWriter::create(info.body_bytes, 0, append_to(out)));
  DRIFTLESS_RETURN_IF_ERROR(write_body(
      info, parts, [&zstd](std::span<const std::byte> bytes) { return zstd.write(bytes); }));
  return zstd.finish();
}

// Passes bytes on in pieces that are still in the cache when the sink copies them, and hashes them.
class HashingSink {
 public:
  explicit HashingSink(const ByteSink& sink) : sink_(sink) { XXH3_128bits_reset(&state_); }

  Status write(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const auto piece = bytes.first(std::min(bytes.size(), kPieceBytes));
      XXH3_128bits_update(&state_, piece.data(), piece.size());
      DRIFTLESS_RETURN_IF_ERROR(sink_(piece));
      bytes = bytes.subspan(piece.size());
    }
    return {};
  }
  [[nodiscard]] Hash128 hash() const {
    const XXH128_hash_t hash = XXH3_128bits_digest(&state_);
    return {hash.high64, hash.low64};
  }

 private:
  static constexpr std::size_t kPieceBytes = std::size_t{128} << 10;
  const ByteSink& sink_;
  XXH3_state_t state_;
};

FrameInfo info_of(const FrameContext& context, const FrameParts& parts) {
  std::uint64_t values_bytes = 0;
  for (const auto& piece : parts.values) values_bytes += piece.size();
  return plain_frame(context, parts.dtype, parts.entries.size(), parts.positions.size(),
                     values_bytes);
}

// A plain frame: header, body and hash, front to back.
Status stream_frame(const FrameInfo& frame, const FrameParts& parts, const ByteSink& sink) {
  HashingSink hashing(sink);
  DRIFTLESS_RETURN_IF_ERROR(hashing.write(make_frame_header(frame)));
  DRIFTLESS_RETURN_IF_ERROR(write_body(
      frame, parts, [&hashing](std::span<const std::byte> bytes) { return hashing.write(bytes); }));
  return sink(frame_trailer(hashing.hash()));
}

// The header states how large the compressed body is, so that comes first.
Status append_compressed(FrameInfo frame, const FrameParts& parts, std::vector<std::byte>& out) {
  const std::size_t begin = out.size();
  out.resize(begin + kFrameHeaderBytes);
  DRIFTLESS_RETURN_IF_ERROR(compress_body(frame, parts, out));
  frame.stored_bytes = out.size() - begin - kFrameHeaderBytes;
  frame.frame_bytes = out.size() - begin + kFrameTrailerBytes;
  const FrameHeaderBytes header = make_frame_header(frame);
  std::memcpy(out.data() + begin, header.data(), header.size());
  const Hash128 hash = xxh3_128(std::span(out).subspan(begin));
  out.resize(out.size() + kFrameTrailerBytes);
  FieldWriter(out.data() + out.size() - kFrameTrailerBytes).put(hash);
  return {};
}

// What the table leaves out must follow from the rest of it: entries tile both streams, in order.
Status check_tiles(const BucketShape& bucket) {
  std::uint64_t position_end = 0, value_end = 0;
  for (const BucketEntry& entry : bucket.entries) {
    if (entry.position_begin != position_end || entry.value_begin != value_end ||
        entry.value_end < entry.value_begin ||
        entry.position_end - entry.position_begin != entry.count() * entry.position_bytes) {
      return error(StatusCode::kInvalidArgument, "the entries of a bucket do not tile its streams");
    }
    position_end = entry.position_end;
    value_end = entry.value_end;
  }
  const unsigned unit = unit_bytes(bucket.dtype);
  if (position_end != bucket.positions_bytes || value_end != bucket.values_bytes / unit ||
      bucket.values_bytes % unit != 0) {
    return error(StatusCode::kInvalidArgument, "the entries of a bucket do not fill its streams");
  }
  return {};
}

}  // namespace

FrameHeaderBytes make_frame_header(const FrameInfo& info) {
  FrameHeaderBytes header{};
  std::memcpy(header.data(), kFrameMagic.data(), kFrameMagic.size());
  FieldWriter fields(header.data() + kFrameMagic.size());
  fields.put(kFrameFormat);
  fields.put(static_cast<std::uint8_t>(info.context.encoding));
  fields.put(static_cast<std::uint8_t>(info.dtype));
  each_header_field(info, [&](const auto& value) { fields.put(value); });
  fields.put(std::uint64_t{0});
  fields.put(std::uint64_t{XXH3_64bits(header.data(), kFrameHeaderHashOffset)});
  return header;
}

Status check_bucket_for(const FrameContext& context, const BucketShape& bucket) {
  if (!info(context.encoding).positional || bucket.coding != coding_of(context.encoding)) {
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

std::vector<std::byte> make_frame_table(std::span<const BucketEntry> entries) {
  std::vector<std::byte> table(entries.size() * kFrameEntryBytes);
  for (std::size_t i = 0; i < entries.size(); ++i) {
    FieldWriter fields(table.data() + i * kFrameEntryBytes);
    fields.put(entries[i].tensor);
    fields.put(static_cast<std::uint32_t>(entries[i].position_bytes));
    fields.put(entries[i].count());
  }
  return table;
}

FrameInfo plain_frame(const FrameContext& context, DType dtype, std::size_t entries,
                      std::uint64_t positions_bytes, std::uint64_t values_bytes) {
  FrameInfo frame;
  frame.context = context;
  frame.dtype = dtype;
  frame.entries = static_cast<std::uint32_t>(entries);
  frame.positions_bytes = positions_bytes;
  frame.values_bytes = values_bytes;
  frame.body_bytes = frame_body_bytes(frame);
  frame.stored_bytes = frame.body_bytes;
  frame.frame_bytes = kFrameHeaderBytes + frame.stored_bytes + kFrameTrailerBytes;
  return frame;
}

std::string frame_file_name(std::uint32_t rank, std::uint32_t index) {
  std::array<char, 64> name{};
  std::snprintf(name.data(), name.size(), "rank%04u_frame%06u.frame", rank, index);
  return name.data();
}

Status write_frame(const FrameContext& context, const BucketView& bucket, const ByteSink& sink) {
  if (is_compressed(context.encoding)) {
    std::vector<std::byte> frame;
    DRIFTLESS_RETURN_IF_ERROR(encode_frame(context, bucket, frame));
    return sink(frame);
  }
  DRIFTLESS_RETURN_IF_ERROR(check_bucket_for(context, bucket));
  const std::span<const std::byte> values[] = {bucket.values};
  const FrameParts parts{bucket.dtype, bucket.entries, bucket.positions, values};
  return stream_frame(info_of(context, parts), parts, sink);
}

Status encode_frame(const FrameContext& context, const BucketView& bucket,
                    std::vector<std::byte>& out) {
  DRIFTLESS_RETURN_IF_ERROR(check_bucket_for(context, bucket));
  const std::span<const std::byte> values[] = {bucket.values};
  return append_frame(context, {bucket.dtype, bucket.entries, bucket.positions, values}, out);
}

Status append_frame(const FrameContext& context, const FrameParts& parts,
                    std::vector<std::byte>& out) {
  const FrameInfo frame = info_of(context, parts);
  const std::size_t begin = out.size();
  Status status;
  if (is_compressed(context.encoding)) {
    status = append_compressed(frame, parts, out);
  } else {
    out.reserve(begin + kFrameHeaderBytes + frame.body_bytes + kFrameTrailerBytes);
    status = stream_frame(frame, parts, append_to(out));
  }
  if (!status.ok()) out.resize(begin);
  return status;
}

}  // namespace driftless
