// The parts that frames are put together from. For the files that make and read frames; others
// include frame.h.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/dtype.h"
#include "core/status.h"
#include "formats/bucket.h"
#include "formats/frame.h"

namespace driftless {

inline constexpr unsigned kFirstUnitBytes = 8;  // of a full frame's position, one for each run
// A body is memory; what is past this is damage, and sums of such sizes cannot overflow.
inline constexpr std::uint64_t kMaxStreamBytes = std::uint64_t{1} << 60;

inline constexpr std::array<char, 8> kFrameMagic{'D', 'R', 'I', 'F', 'T', 'L', 'S', 'F'};
inline constexpr std::size_t kFrameHeaderHashOffset = kFrameHeaderBytes - 8;
inline constexpr std::size_t kFrameAlignment = 8;  // of the streams

constexpr std::uint64_t frame_aligned(std::uint64_t bytes) {
  return (bytes + kFrameAlignment - 1) / kFrameAlignment * kFrameAlignment;
}
constexpr bool is_full(Encoding encoding) { return encoding == Encoding::kFull; }
constexpr bool is_compressed(Encoding encoding) { return encoding == Encoding::kDeltasZstd; }
constexpr Encoding coding_of(Encoding encoding) {
  return encoding == Encoding::kIndices ? Encoding::kIndices : Encoding::kDeltas;
}
inline std::uint64_t frame_body_bytes(const FrameInfo& info) {
  return info.entries * std::uint64_t{kFrameEntryBytes} + frame_aligned(info.positions_bytes) +
         frame_aligned(info.values_bytes);
}

// Of the entries only tensor, position_bytes and count() are written.
struct FrameParts {
  DType dtype = DType::kU8;
  std::span<const BucketEntry> entries;
  std::span<const std::byte> positions;
  std::span<const std::span<const std::byte>> values;  // one after the other
};

// Appends a frame of parts that were found good. After a failure `out` is as it was.
[[nodiscard]] Status append_frame(const FrameContext& context, const FrameParts& parts,
                                  std::vector<std::byte>& out);

}  // namespace driftless
