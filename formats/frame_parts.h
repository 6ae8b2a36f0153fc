// SPDX-License-Identifier: Apache-2.0
// Building blocks for the files that make and read frames. Other files include frame.h.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

#include "core/dtype.h"
#include "core/status.h"
#include "formats/bucket.h"
#include "formats/frame.h"

namespace driftless {

// Larger stream sizes are treated as damage, because streams lie in memory. Sums of such sizes
// cannot overflow.
inline constexpr std::uint64_t kMaxStreamBytes = std::uint64_t{1} << 60;

inline constexpr std::array<char, 8> kFrameMagic{'D', 'R', 'I', 'F', 'T', 'L', 'S', 'F'};
inline constexpr std::size_t kFrameHeaderHashOffset = kFrameHeaderBytes - 8;
inline constexpr std::size_t kFrameAlignment = 8;  // alignment of the streams
inline constexpr std::size_t kFrameDimBytes = 16;  // in a row, for each dimension of its box
inline constexpr std::uint32_t kNoScale = ~std::uint32_t{0};

constexpr std::uint64_t frame_aligned(std::uint64_t bytes) {
  return (bytes + kFrameAlignment - 1) / kFrameAlignment * kFrameAlignment;
}
constexpr bool is_full(Encoding encoding) { return encoding == Encoding::kFull; }
constexpr bool is_compact(Encoding encoding) { return encoding == Encoding::kCompact; }
constexpr bool is_compressed(Encoding encoding) { return encoding == Encoding::kDeltasZstd; }
constexpr Encoding coding_of(Encoding encoding) {
  return encoding == Encoding::kIndices ? Encoding::kIndices : Encoding::kDeltas;
}
// The encoding that a row names for its streams.
constexpr Encoding row_encoding(Encoding encoding) {
  return is_full(encoding) || is_compact(encoding) ? encoding : coding_of(encoding);
}

// Writes little-endian fields one after the other; 128-bit values in the byte order of their
// hexadecimal text.
class FieldWriter {
 public:
  explicit FieldWriter(std::byte* out) : out_(out) {}
  template <typename T>
  void put(T value) {
    std::memcpy(out_, &value, sizeof(T));
    out_ += sizeof(T);
  }
  void put(const Hash128& hash) {
    put(__builtin_bswap64(hash.high));
    put(__builtin_bswap64(hash.low));
  }

 private:
  std::byte* out_;
};

class FieldReader {
 public:
  explicit FieldReader(const std::byte* from) : from_(from) {}
  template <typename T>
  T get() {
    T value;
    std::memcpy(&value, from_, sizeof(T));
    from_ += sizeof(T);
    if constexpr (std::is_same_v<T, Hash128>) {
      return {__builtin_bswap64(value.high), __builtin_bswap64(value.low)};
    }
    return value;
  }

 private:
  const std::byte* from_;
};

// Calls field(value) for each header field after format, encoding and dtype, in order.
template <typename Info, typename Field>
void each_header_field(Info& info, const Field& field) {
  field(info.entries);
  field(info.frame_bytes);
  field(info.table_bytes);
  field(info.stored_positions_bytes);
  field(info.context.id.run);
  field(info.context.id.version);
  field(info.context.base_version);
  field(info.context.layout);
  field(info.context.rank);
  field(info.context.index);
  field(info.positions_bytes);
  field(info.values_bytes);
  field(info.stored_values_bytes);
}

using FrameHeaderBytes = std::array<std::byte, kFrameHeaderBytes>;
[[nodiscard]] FrameHeaderBytes make_frame_header(const FrameInfo& info);

// The unit in which a BucketEntry counts values: the dtype's units, or the bytes of coded tiles.
[[nodiscard]] inline unsigned value_unit(const FrameInfo& info) {
  return is_compact(info.context.encoding) ? 1 : unit_bytes(info.dtype);
}

// Writes the rows of a table. Uses only tensor, position_bytes, block and count() of the entries.
[[nodiscard]] std::vector<std::byte> make_frame_table(const FrameInfo& info,
                                                      std::span<const BucketEntry> entries,
                                                      std::span<const FrameBlock> blocks);
[[nodiscard]] std::uint64_t frame_table_bytes(std::span<const BucketEntry> entries);
// Reads a table whose hash was checked: fills head.entries, blocks and cut. Checks that ranges fill
// the streams that head.info states, and stay within them.
[[nodiscard]] Status read_frame_table(std::span<const std::byte> table, const WeightLayout& layout,
                                      FrameHead& head);

// Checks the canonical form of runs: inside their blocks, ascending, with a gap between two runs of
// a block.
[[nodiscard]] Status check_runs(const WeightLayout& layout, DType dtype,
                                std::span<const BucketEntry> runs,
                                std::span<const FrameBlock> blocks, StatusCode code);

// Checks that blocks of `compact` fit their tensors and do not overlap.
[[nodiscard]] Status check_compact_entries(const WeightLayout& layout, DType dtype,
                                           std::span<const BucketEntry> entries,
                                           std::span<const FrameBlock> blocks, StatusCode code);

// Checks that the bucket may go into a frame of this encoding, and that its entries tile its
// streams.
[[nodiscard]] Status check_bucket_for(const FrameContext& context, const BucketShape& bucket);
// Computes the sizes of an uncompressed frame from those of its parts.
[[nodiscard]] FrameInfo plain_frame(const FrameContext& context, DType dtype,
                                    std::span<const BucketEntry> entries,
                                    std::uint64_t positions_bytes, std::uint64_t values_bytes);

// The parts that make up a frame.
struct FrameParts {
  DType dtype = DType::kU8;
  std::span<const BucketEntry> entries;
  std::vector<FrameBlock> blocks;                      // the caller sets first_unit of each
  std::span<const std::byte> positions;                // of all entries
  std::span<const std::span<const std::byte>> values;  // one after the other
  std::span<const std::byte> tables;                   // of `compact`, after the rows
};

// Appends a frame of checked parts. After a failure `out` is unchanged.
[[nodiscard]] Status append_frame(const FrameContext& context, FrameParts parts,
                                  std::vector<std::byte>& out);

}  // namespace driftless
