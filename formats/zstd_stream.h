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

namespace driftless {

inline constexpr int kZstdLevel = 1;
inline constexpr int kMaxWindowLog = 27;

// What is to be compressed: tells the writer where to look.
enum class ZstdContent : unsigned char { kAny, kMostlyZero };

using ByteSink = std::function<Status(std::span<const std::byte>)>;

// Writes one frame whose header states its content size. The bytes do not depend on `workers`.
class ZstdWriter {
 public:
  // `content_bytes` must be exactly what will be written. `workers` threads compress in the
  // background (0: the caller's thread, with other, equally valid bytes for content over 1 MiB).
  [[nodiscard]] static Result<ZstdWriter> create(std::uint64_t content_bytes, unsigned workers,
                                                 ByteSink sink,
                                                 ZstdContent content = ZstdContent::kAny,
                                                 int level = kZstdLevel);
  ZstdWriter(ZstdWriter&&) noexcept;
  ZstdWriter& operator=(ZstdWriter&&) noexcept;
  ~ZstdWriter();

  [[nodiscard]] Status write(std::span<const std::byte> bytes);
  [[nodiscard]] Status finish();

 private:
  struct State;
  explicit ZstdWriter(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// Reads a frame that lies whole in memory. Refuses frames without content size, with a dictionary,
// with a window above 2^27, and bytes after the frame.
class ZstdReader {
 public:
  [[nodiscard]] static Result<ZstdReader> open(std::span<const std::byte> frame);
  ZstdReader(ZstdReader&&) noexcept;
  ZstdReader& operator=(ZstdReader&&) noexcept;
  ~ZstdReader();

  [[nodiscard]] std::uint64_t content_bytes() const;
  // Fills all of `bytes`; kCorrupt where the content ends before or the frame is damaged.
  [[nodiscard]] Status read(std::span<std::byte> bytes);
  // Reads and drops this many bytes.
  [[nodiscard]] Status skip(std::uint64_t count);
  // Ok only where exactly all of the content was read and the frame ended there.
  [[nodiscard]] Status finish();

 private:
  struct State;
  explicit ZstdReader(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// Whole frames at once. decompress refuses a content size above `max_bytes` before allocating.
[[nodiscard]] Result<std::vector<std::byte>> zstd_compress(std::span<const std::byte> bytes,
                                                           int level = kZstdLevel);
[[nodiscard]] Result<std::vector<std::byte>> zstd_decompress(std::span<const std::byte> frame,
                                                             std::uint64_t max_bytes);
[[nodiscard]] bool is_zstd_frame(std::span<const std::byte> bytes);  // by its magic

}  // namespace driftless
