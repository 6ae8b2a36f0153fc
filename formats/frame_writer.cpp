// SPDX-License-Identifier: Apache-2.0
// Writing frames: encode_frame(), write_frame(), append_frame().
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

ByteSink append_to(std::vector<std::byte>& out) {
  return [&out](std::span<const std::byte> bytes) {
    out.insert(out.end(), bytes.begin(), bytes.end());
    return Status();
  };
}

// Passes the positions of all entries, or their values, to a sink, in pieces that are still in the
// cache when the sink copies them; and hashes the stream of each entry.
class HashingSink {
 public:
  // `sizes`: the sizes of the entries' streams.
  HashingSink(const ByteSink& sink, std::vector<std::uint64_t> sizes)
      : sink_(sink), sizes_(std::move(sizes)) {
    hashes_.reserve(sizes_.size());
    XXH3_128bits_reset(&state_);
    close_full();
  }

  Status write(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const auto piece = bytes.first(std::min(bytes.size(), kPieceBytes));
      hash(piece);
      DRIFTLESS_RETURN_IF_ERROR(sink_(piece));
      bytes = bytes.subspan(piece.size());
    }
    return {};
  }
  [[nodiscard]] const std::vector<Hash128>& hashes() const { return hashes_; }

 private:
  void hash(std::span<const std::byte> piece) {
    while (!piece.empty() && hashes_.size() < sizes_.size()) {
      const auto some =
          piece.first(std::min<std::uint64_t>(piece.size(), sizes_[hashes_.size()] - done_));
      XXH3_128bits_update(&state_, some.data(), some.size());
      done_ += some.size();
      piece = piece.subspan(some.size());
      close_full();
    }
  }
  // Ends the complete streams, including empty ones.
  void close_full() {
    while (hashes_.size() < sizes_.size() && done_ == sizes_[hashes_.size()]) {
      const XXH128_hash_t hash = XXH3_128bits_digest(&state_);
      hashes_.push_back({hash.high64, hash.low64});
      XXH3_128bits_reset(&state_);
      done_ = 0;
    }
  }

  static constexpr std::size_t kPieceBytes = std::size_t{128} << 10;
  const ByteSink& sink_;
  std::vector<std::uint64_t> sizes_;
  std::vector<Hash128> hashes_;  // of the finished streams
  std::uint64_t done_ = 0;       // bytes of the next stream so far
  XXH3_state_t state_;
};

FrameInfo info_of(const FrameContext& context, const FrameParts& parts) {
  std::uint64_t values_bytes = 0;
  for (const auto& piece : parts.values) values_bytes += piece.size();
  FrameInfo frame =
      plain_frame(context, parts.dtype, parts.entries, parts.positions.size(), values_bytes);
  frame.table_bytes += parts.tables.size();
  frame.frame_bytes += parts.tables.size();
  return frame;
}

// Table and trailer.
std::vector<std::byte> end_of_frame(const FrameInfo& frame, const FrameParts& parts) {
  std::vector<std::byte> table = make_frame_table(frame, parts.entries, parts.blocks);
  table.insert(table.end(), parts.tables.begin(), parts.tables.end());
  const Hash128 hash = xxh3_128(table);
  table.resize(table.size() + kFrameTrailerBytes);
  FieldWriter(table.data() + table.size() - kFrameTrailerBytes).put(hash);
  return table;
}

void note_plain_sizes(FrameParts& parts, unsigned unit) {
  for (std::size_t i = 0; i < parts.entries.size(); ++i) {
    const BucketEntry& entry = parts.entries[i];
    parts.blocks[i].positions.size_bytes = entry.position_end - entry.position_begin;
    parts.blocks[i].values.size_bytes = entry.count() * unit;
  }
}

// Writes an uncompressed frame front to back.
Result<Hash128> stream_frame(const FrameInfo& frame, FrameParts& parts, const ByteSink& sink) {
  note_plain_sizes(parts, value_unit(frame));
  const auto sizes = [&](FrameStream FrameBlock::* stream) {
    std::vector<std::uint64_t> all;
    for (const FrameBlock& block : parts.blocks) all.push_back((block.*stream).size_bytes);
    return all;
  };
  DRIFTLESS_RETURN_IF_ERROR(sink(make_frame_header(frame)));
  HashingSink positions(sink, sizes(&FrameBlock::positions));
  DRIFTLESS_RETURN_IF_ERROR(positions.write(parts.positions));
  DRIFTLESS_RETURN_IF_ERROR(write_padding(frame.positions_bytes, sink));
  HashingSink values(sink, sizes(&FrameBlock::values));
  for (const std::span<const std::byte> piece : parts.values) {
    DRIFTLESS_RETURN_IF_ERROR(values.write(piece));
  }
  DRIFTLESS_RETURN_IF_ERROR(write_padding(frame.values_bytes, sink));
  for (std::size_t i = 0; i < parts.blocks.size(); ++i) {
    parts.blocks[i].hash = block_hash(positions.hashes()[i], values.hashes()[i]);
  }
  const std::vector<std::byte> end = end_of_frame(frame, parts);
  DRIFTLESS_RETURN_IF_ERROR(sink(end));
  return frame_table_hash(end);
}

// Appends `content` compressed by zstd, or as it is if that is not smaller.
Status pack(ZstdPacker& zstd, std::span<const std::byte> content, std::vector<std::byte>& out,
            FrameStream& stream, Hash128& hash) {
  const std::size_t begin = out.size();
  if (!content.empty()) DRIFTLESS_RETURN_IF_ERROR(zstd.append(content, out));
  stream.zstd = out.size() - begin < content.size();
  if (!stream.zstd) {
    out.resize(begin);
    out.insert(out.end(), content.begin(), content.end());
  }
  stream.size_bytes = out.size() - begin;
  hash = xxh3_128(std::span(out).subspan(begin));
  return {};
}

// Compresses the streams first, because the header states their compressed sizes.
Status append_compressed(FrameInfo frame, FrameParts& parts, std::vector<std::byte>& out) {
  const std::size_t begin = out.size();
  const std::span<const std::byte> values =
      parts.values.empty() ? std::span<const std::byte>() : parts.values.front();
  const unsigned unit = unit_bytes(parts.dtype);
  std::vector<Hash128> hashes(parts.entries.size());
  DRIFTLESS_ASSIGN_OR_RETURN(ZstdPacker zstd, ZstdPacker::create());
  out.resize(begin + kFrameHeaderBytes);
  for (std::size_t i = 0; i < parts.entries.size(); ++i) {
    const BucketEntry& entry = parts.entries[i];
    const auto content =
        parts.positions.subspan(entry.position_begin, entry.position_end - entry.position_begin);
    DRIFTLESS_RETURN_IF_ERROR(pack(zstd, content, out, parts.blocks[i].positions, hashes[i]));
  }
  frame.stored_positions_bytes = out.size() - begin - kFrameHeaderBytes;
  out.resize(begin + kFrameHeaderBytes + frame_aligned(frame.stored_positions_bytes));
  const std::size_t values_begin = out.size();
  for (std::size_t i = 0; i < parts.entries.size(); ++i) {
    const BucketEntry& entry = parts.entries[i];
    const auto content = values.subspan(entry.value_begin * unit, entry.count() * unit);
    Hash128 hash;
    DRIFTLESS_RETURN_IF_ERROR(pack(zstd, content, out, parts.blocks[i].values, hash));
    parts.blocks[i].hash = block_hash(hashes[i], hash);
  }
  frame.stored_values_bytes = out.size() - values_begin;
  out.resize(values_begin + frame_aligned(frame.stored_values_bytes));
  frame.frame_bytes = frame_places(frame).trailer + kFrameTrailerBytes;
  const FrameHeaderBytes header = make_frame_header(frame);
  std::memcpy(out.data() + begin, header.data(), header.size());
  const std::vector<std::byte> end = end_of_frame(frame, parts);
  out.insert(out.end(), end.begin(), end.end());
  return {};
}

// Checks that entries tile both streams in order, because the table omits the fields that follow
// from that.
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

FrameParts parts_of(const BucketView& bucket, std::span<const std::span<const std::byte>> values) {
  return {bucket.dtype,     bucket.entries, std::vector<FrameBlock>(bucket.entries.size()),
          bucket.positions, values,         {}};
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

FrameInfo plain_frame(const FrameContext& context, DType dtype,
                      std::span<const BucketEntry> entries, std::uint64_t positions_bytes,
                      std::uint64_t values_bytes) {
  FrameInfo frame;
  frame.context = context;
  frame.dtype = dtype;
  frame.entries = static_cast<std::uint32_t>(entries.size());
  frame.table_bytes = frame_table_bytes(entries);
  frame.positions_bytes = frame.stored_positions_bytes = positions_bytes;
  frame.values_bytes = frame.stored_values_bytes = values_bytes;
  frame.frame_bytes = frame_places(frame).trailer + kFrameTrailerBytes;
  return frame;
}

std::string frame_file_name(std::uint32_t rank, std::uint32_t index) {
  std::array<char, 64> name{};
  std::snprintf(name.data(), name.size(), "rank%04u_frame%06u.frame", rank, index);
  return name.data();
}

Result<Hash128> write_frame(const FrameContext& context, const BucketView& bucket,
                            const ByteSink& sink) {
  if (is_compressed(context.encoding)) {
    std::vector<std::byte> frame;
    DRIFTLESS_RETURN_IF_ERROR(encode_frame(context, bucket, frame));
    DRIFTLESS_RETURN_IF_ERROR(sink(frame));
    return frame_table_hash(frame);
  }
  DRIFTLESS_RETURN_IF_ERROR(check_bucket_for(context, bucket));
  const std::span<const std::byte> values[] = {bucket.values};
  FrameParts parts = parts_of(bucket, values);
  return stream_frame(info_of(context, parts), parts, sink);
}

Status encode_frame(const FrameContext& context, const BucketView& bucket,
                    std::vector<std::byte>& out) {
  DRIFTLESS_RETURN_IF_ERROR(check_bucket_for(context, bucket));
  const std::span<const std::byte> values[] = {bucket.values};
  return append_frame(context, parts_of(bucket, values), out);
}

Status append_frame(const FrameContext& context, FrameParts parts, std::vector<std::byte>& out) {
  const FrameInfo frame = info_of(context, parts);
  const std::size_t begin = out.size();
  Status status;
  if (is_compressed(context.encoding)) {
    status = append_compressed(frame, parts, out);
  } else {
    out.reserve(begin + frame.frame_bytes);
    status = stream_frame(frame, parts, append_to(out)).status();
  }
  if (!status.ok()) out.resize(begin);
  return status;
}

Result<FramePlan> plan_frame(const FrameContext& context, const BucketShape& bucket) {
  if (is_compressed(context.encoding)) {
    return error(StatusCode::kUnsupported, "a frame of ", info(context.encoding).name,
                 " cannot be assembled in other memory: its streams are compressed; use indices "
                 "or deltas");
  }
  DRIFTLESS_RETURN_IF_ERROR(check_bucket_for(context, bucket));
  const FrameInfo frame = plain_frame(context, bucket.dtype, bucket.entries, bucket.positions_bytes,
                                      bucket.values_bytes);
  const FrameHeaderBytes header = make_frame_header(frame);
  return FramePlan{{header.begin(), header.end()}, frame_places(frame), frame.frame_bytes};
}

Result<std::vector<std::byte>> encode_frame_table(const FrameContext& context,
                                                  const BucketShape& bucket,
                                                  std::span<const Hash128> hashes) {
  DRIFTLESS_RETURN_IF_ERROR(check_bucket_for(context, bucket));
  if (hashes.size() != bucket.entries.size()) {
    return error(StatusCode::kInvalidArgument, hashes.size(), " hashes for ", bucket.entries.size(),
                 " entries");
  }
  FrameParts parts{
      bucket.dtype, bucket.entries, std::vector<FrameBlock>(hashes.size()), {}, {}, {}};
  note_plain_sizes(parts, unit_bytes(parts.dtype));
  for (std::size_t i = 0; i < hashes.size(); ++i) parts.blocks[i].hash = hashes[i];
  return end_of_frame(plain_frame(context, bucket.dtype, bucket.entries, bucket.positions_bytes,
                                  bucket.values_bytes),
                      parts);
}

}  // namespace driftless
