// The parts that frames are put together from. For the files that make frames; others include
// frame.h.
#pragma once

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
