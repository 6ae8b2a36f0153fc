// SPDX-License-Identifier: Apache-2.0
// Input: a zstd frame. Reading it in pieces, skipping, and reading it at once must agree.
#include <algorithm>
#include <cstdint>
#include <cstdlib>

#include "formats/zstd_stream.h"

namespace {

using namespace driftless;

constexpr std::uint64_t kMaxContent = 1 << 22;

Result<std::vector<std::byte>> in_pieces(std::span<const std::byte> frame) {
  DRIFTLESS_ASSIGN_OR_RETURN(ZstdReader reader, ZstdReader::open(frame));
  if (reader.content_bytes() > kMaxContent) return error(StatusCode::kCorrupt, "too large");
  std::vector<std::byte> content(reader.content_bytes());
  for (std::size_t at = 0; at < content.size(); at += 777) {
    const std::size_t piece = std::min<std::size_t>(777, content.size() - at);
    DRIFTLESS_RETURN_IF_ERROR(reader.read(std::span(content).subspan(at, piece)));
  }
  DRIFTLESS_RETURN_IF_ERROR(reader.finish());
  return content;
}

Status skipped(std::span<const std::byte> frame) {
  DRIFTLESS_ASSIGN_OR_RETURN(ZstdReader reader, ZstdReader::open(frame));
  if (reader.content_bytes() > kMaxContent) return error(StatusCode::kCorrupt, "too large");
  DRIFTLESS_RETURN_IF_ERROR(reader.skip(reader.content_bytes()));
  return reader.finish();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto frame = std::as_bytes(std::span(data, size));
  const auto whole = zstd_decompress(frame, kMaxContent);
  const auto pieces = in_pieces(frame);
  if (whole.ok() != pieces.ok() || whole.ok() != skipped(frame).ok()) std::abort();
  if (whole.ok() && *whole != *pieces) std::abort();
  return 0;
}
