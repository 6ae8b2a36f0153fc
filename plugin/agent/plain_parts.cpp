// SPDX-License-Identifier: Apache-2.0
#include "plugin/agent/plain_parts.h"

#include "formats/frame.h"
#include "formats/safetensors.h"
#include "formats/zstd_stream.h"
#include "plugin/targets/version_source.h"

namespace driftless {
namespace {

bool frames_are_compressed(const Manifest& manifest) {
  return has_frames(manifest) && manifest.encoding == Encoding::kDeltasZstd;
}

bool is_compressed_flush(const Manifest& manifest, const MappedFile& part) {
  return manifest.directory_layout == DirectoryLayout::kFlush && is_zstd_frame(part.bytes());
}

std::uint64_t max_flush_bytes(const WeightLayout& layout) {
  return 8 + kMaxSafetensorsHeaderBytes + layout.total_bytes() + 8 * layout.total_units();
}

Result<PlainPart> write_plain_frame(const MappedFile& part, const WeightLayout& layout, File& out) {
  DRIFTLESS_ASSIGN_OR_RETURN(const Frame frame,
                             Frame::decode(part.bytes(), layout, max_frame_body_bytes(layout)));
  FrameContext context = frame.info().context;
  context.encoding = Encoding::kDeltas;
  std::uint64_t at = 0;
  PlainPart made;
  DRIFTLESS_ASSIGN_OR_RETURN(
      made.table,
      write_frame(context, frame.bucket(), [&](std::span<const std::byte> bytes) -> Status {
        DRIFTLESS_RETURN_IF_ERROR(out.pwrite(at, bytes));
        at += bytes.size();
        return {};
      }));
  DRIFTLESS_RETURN_IF_ERROR(out.sync());
  made.delta_bytes = frame.info().positions_bytes + frame.info().values_bytes;
  return made;
}

}  // namespace

bool has_frames(const Manifest& manifest) {
  return manifest.directory_layout == DirectoryLayout::kFrames ||
         manifest.directory_layout == DirectoryLayout::kHdf5;
}

Encoding plain_encoding(const Manifest& manifest) {
  return frames_are_compressed(manifest) ? Encoding::kDeltas : manifest.encoding;
}

Result<std::uint64_t> inflated_bytes(const Manifest& manifest, const MappedFile& part,
                                     const WeightLayout& layout) {
  if (frames_are_compressed(manifest)) {
    const Result<FrameInfo> frame = read_frame_header(part.bytes());
    if (!frame.ok()) return frame.status().with_context(part.path());
    return std::min(frame->body_bytes(), max_frame_body_bytes(layout));
  }
  if (!is_compressed_flush(manifest, part)) return std::uint64_t{0};
  const Result<ZstdReader> reader = ZstdReader::open(part.bytes());
  if (!reader.ok()) return reader.status().with_context(part.path());
  return std::min(reader->content_bytes(), max_flush_bytes(layout));
}

Result<PlainPart> write_plain_part(const Manifest& manifest, const MappedFile& part,
                                   const WeightLayout& layout, File& out) {
  if (frames_are_compressed(manifest)) {
    const Result<PlainPart> written = write_plain_frame(part, layout, out);
    return written.ok() ? written : written.status().with_context(part.path());
  }
  if (is_compressed_flush(manifest, part)) {
    const auto plain = zstd_decompress(part.bytes(), max_flush_bytes(layout));
    if (!plain.ok()) return plain.status().with_context(part.path());
    DRIFTLESS_RETURN_IF_ERROR(out.pwrite(0, *plain));
  } else {
    DRIFTLESS_RETURN_IF_ERROR(out.pwrite(0, part.bytes()));
  }
  DRIFTLESS_RETURN_IF_ERROR(out.sync());
  return PlainPart();
}

}  // namespace driftless
