// SPDX-License-Identifier: Apache-2.0
// One zstd frame, written and read in pieces.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "core/status.h"

struct ZSTD_CCtx_s;
struct ZSTD_DCtx_s;

namespace driftless {

inline constexpr int kMaxWindowLog = 27;

// The kind of content; the compressor searches accordingly.
enum class ZstdContent : unsigned char { kAny, kMostlyZero };

using ByteSink = std::function<Status(std::span<const std::byte>)>;

struct FreeZstd {
  void operator()(ZSTD_CCtx_s* context) const;
  void operator()(ZSTD_DCtx_s* context) const;
};

// Writes one frame with its content size in the header. Its bytes are the same for all workers > 0.
class ZstdWriter {
 public:
  // `content_bytes` must be exactly the number of bytes written. `workers` threads compress in the
  // background (0: the caller's thread, with other, equally valid bytes for content over 1 MiB).
  [[nodiscard]] static Result<ZstdWriter> create(std::uint64_t content_bytes, unsigned workers,
                                                 ByteSink sink,
                                                 ZstdContent content = ZstdContent::kAny);

  [[nodiscard]] Status write(std::span<const std::byte> bytes);
  [[nodiscard]] Status finish();

 private:
  ZstdWriter() = default;
  [[nodiscard]] Status configure(unsigned workers, ZstdContent content);
  // Compresses `bytes`; at the end of the content returns when the frame is complete.
  [[nodiscard]] Status feed(std::span<const std::byte> bytes, bool end);

  std::unique_ptr<ZSTD_CCtx_s, FreeZstd> context_;
  ByteSink sink_;
  std::uint64_t content_bytes_ = 0;
  std::uint64_t written_ = 0;
  Status failure_;  // of an earlier call; every later call returns it
  std::size_t out_bytes_ = 0;
  std::unique_ptr<std::byte[]> out_;
};

// Reads a frame that is completely in memory. Refuses frames without content size, with a
// dictionary or with a window above 2^27, and bytes after the frame.
class ZstdReader {
 public:
  [[nodiscard]] static Result<ZstdReader> open(std::span<const std::byte> frame);

  [[nodiscard]] std::uint64_t content_bytes() const { return content_bytes_; }
  // Fills all of `bytes`; kCorrupt if the content ends before that or the frame is damaged.
  [[nodiscard]] Status read(std::span<std::byte> bytes);
  // Reads and drops this many bytes.
  [[nodiscard]] Status skip(std::uint64_t count);
  // Ok only if exactly the whole content was read and the frame ended there.
  [[nodiscard]] Status finish();

 private:
  ZstdReader() = default;
  // Decodes up to bytes.size() bytes and returns their number.
  [[nodiscard]] Result<std::size_t> decode(std::span<std::byte> bytes);

  std::unique_ptr<ZSTD_DCtx_s, FreeZstd> context_;
  std::span<const std::byte> frame_;
  std::size_t at_ = 0;  // bytes of the frame read so far
  std::uint64_t content_bytes_ = 0;
  std::uint64_t done_ = 0;
  bool ended_ = false;  // the frame's last byte was read
};

// The size that the header of a frame states. Refuses the headers that ZstdReader refuses.
[[nodiscard]] Result<std::uint64_t> zstd_content_bytes(std::span<const std::byte> frame);

// Compresses whole frames one after the other with one context.
class ZstdPacker {
 public:
  [[nodiscard]] static Result<ZstdPacker> create();
  // Appends a frame of `content` to `out`, with the bytes that ZstdWriter without workers makes.
  [[nodiscard]] Status append(std::span<const std::byte> content, std::vector<std::byte>& out);

 private:
  std::unique_ptr<ZSTD_CCtx_s, FreeZstd> context_;
};
class ZstdUnpacker {
 public:
  // Fills `content`. kCorrupt unless `frame` is one that ZstdReader accepts and has exactly this
  // content size.
  [[nodiscard]] Status read(std::span<const std::byte> frame, std::span<std::byte> content);

 private:
  std::unique_ptr<ZSTD_DCtx_s, FreeZstd> context_;  // created when first needed
};

// Decompresses a whole frame. Refuses a content size above `max_bytes` before it allocates.
[[nodiscard]] Result<std::vector<std::byte>> zstd_decompress(std::span<const std::byte> frame,
                                                             std::uint64_t max_bytes);
[[nodiscard]] bool is_zstd_frame(std::span<const std::byte> bytes);  // by its magic

}  // namespace driftless
