// SPDX-License-Identifier: Apache-2.0
// A bucket: the encoded deltas of several tensors, or blocks of them, of one dtype, as two streams,
// positions and values, and a table that says whose they are. Frames (frame.h) and flush files
// (flush_file.h) are two containers of the same bucket.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/block.h"
#include "core/delta_view.h"
#include "core/layout.h"
#include "core/status.h"
#include "formats/byte_buffer.h"
#include "formats/encoding.h"

namespace driftless {

// Positions of an entry count inside its block, and ascend strictly. kIndices: the positions
// themselves, int32, or int64 where the block has more than 2^31 units. kDeltas: gaps
// p[k] - p[k-1] - 1 with p[-1] = -1, uint16, or uint32 where one gap of the entry needs it, or
// uint64 likewise.
struct BucketEntry {
  std::uint32_t tensor = 0;                            // index in the layout
  unsigned position_bytes = 4;                         // 2, 4 or 8
  std::uint64_t position_begin = 0, position_end = 0;  // bytes of the positions stream
  std::uint64_t value_begin = 0, value_end = 0;        // units of the values stream
  // Of the tensor; null: all of it. Owned by who has the bucket's streams.
  const TensorBlock* block = nullptr;

  [[nodiscard]] std::uint64_t count() const { return value_end - value_begin; }
};

// A bucket without the bytes of its streams, which may lie where this process cannot read them.
struct BucketShape {
  Encoding coding = Encoding::kIndices;  // kIndices or kDeltas
  DType dtype = DType::kU8;
  std::span<const BucketEntry> entries;
  std::uint64_t positions_bytes = 0, values_bytes = 0;
};

struct BucketView {
  Encoding coding = Encoding::kIndices;
  DType dtype = DType::kU8;
  std::span<const BucketEntry> entries;
  std::span<const std::byte> positions;
  std::span<const std::byte> values;

  operator BucketShape() const {  // NOLINT(google-explicit-constructor): a view has a shape
    return {coding, dtype, entries, positions.size(), values.size()};
  }
};

// Collects deltas until the owner thinks the bucket large enough. Memory is kept between buckets.
// The layout must outlive it. One thread at a time.
class BucketBuilder {
 public:
  // `encoding` is kIndices, kDeltas or kDeltasZstd (which codes like kDeltas).
  BucketBuilder(const WeightLayout& layout, Encoding encoding);

  [[nodiscard]] bool empty() const { return entries_.empty(); }
  [[nodiscard]] std::uint64_t size_bytes() const { return positions_.size() + values_.size(); }
  // Whether this delta may join: the bucket is empty or holds the same dtype.
  [[nodiscard]] bool accepts(const DeltaView& delta) const;
  // Appends; where the last entry is of the same tensor, extends it (positions must ascend). An
  // empty delta adds nothing. After a failure (kInvalidArgument for a delta that does not fit the
  // layout, does not ascend, or comes back to a tensor that is not the last; kNoSpace without
  // memory) the bucket is as it was. With `block`, which outlives what is in the bucket, the
  // positions count inside it.
  [[nodiscard]] Status add(const DeltaView& delta, const TensorBlock* block = nullptr);
  // How far the first position of the delta is from the last one of the entry that it would join,
  // or from the beginning.
  [[nodiscard]] std::uint64_t gap_before(const DeltaView& delta,
                                         const TensorBlock* block = nullptr) const;
  // Valid until the next add() or clear().
  [[nodiscard]] BucketView view() const;
  void clear();

 private:
  [[nodiscard]] Status check(const DeltaView& delta, const TensorBlock* block) const;
  [[nodiscard]] bool extends_last(const DeltaView& delta, const TensorBlock* block) const;
  [[nodiscard]] Status append_positions(const DeltaView& delta, BucketEntry& entry);
  [[nodiscard]] Status append_gaps(const DeltaView& delta, BucketEntry& entry);
  void widen(BucketEntry& entry, unsigned position_bytes);

  const WeightLayout* layout_;
  Encoding coding_;
  DType dtype_ = DType::kU8;
  std::vector<BucketEntry> entries_;
  ByteBuffer positions_;
  ByteBuffer values_;
  std::uint64_t next_position_ = 0;  // one past the last position of the last entry
  // Per tensor: the number of the last bucket that held it, not cut.
  std::vector<std::uint32_t> bucket_;
  std::uint32_t bucket_number_ = 1;
};

// At most so many blocks of a tensor are in a bucket, or a version: whether they meet is looked at
// block by block.
inline constexpr std::size_t kMaxBlocksOfTensor = 1024;

// kCorrupt, naming the tensor, if two entries have units in common, by their blocks, or there are
// too many. With `runs` entries of the same block that follow each other count once.
[[nodiscard]] Status check_apart(const WeightLayout& layout, std::span<const BucketEntry> entries,
                                 bool runs);

// Checks a bucket that came from outside against the layout: tensors exist and have the bucket's
// dtype, no tensor or block is there twice, no two blocks meet, no entry is empty, ranges follow
// each other from the beginning of both streams to their ends, widths are allowed, counts agree.
// Positions themselves are checked by EntryCursor.
[[nodiscard]] Status check_bucket(const WeightLayout& layout, const BucketShape& bucket);
// One entry alone: tensor, dtype, width, and ranges within the streams. What EntryCursor relies on.
[[nodiscard]] Status check_entry(const WeightLayout& layout, const BucketShape& bucket,
                                 const BucketEntry& entry);

// Decodes one checked entry, piece by piece, as positions in the tensor. Refuses (kCorrupt)
// positions that do not ascend or lie past the block's end. The bucket's streams and the layout
// must outlive it.
class EntryCursor {
 public:
  EntryCursor(const WeightLayout& layout, const BucketView& bucket, const BucketEntry& entry);

  // The next piece, of up to 16384 positions; empty at the end. Valid until the next call. After a
  // failure every further call fails.
  [[nodiscard]] Result<DeltaView> next();

 private:
  // Decodes up to `wanted` positions into offsets_, relative to `origin`. Returns how many: fewer
  // where the next one is too far from the origin, none where they are not valid.
  template <typename T>
  [[nodiscard]] std::size_t decode_gaps(std::size_t wanted, std::uint64_t& origin);
  template <typename T>
  [[nodiscard]] std::size_t decode_indices(std::size_t wanted, std::uint64_t& origin);
  [[nodiscard]] std::size_t decode(std::size_t wanted, std::uint64_t& origin);
  // From positions in the block to positions in the tensor. Returns how many of `count`: fewer if
  // the next one is too far from the first.
  [[nodiscard]] std::size_t place(std::size_t count, std::uint64_t& origin);

  const WeightLayout* layout_;
  BucketView bucket_;
  BucketEntry entry_;
  std::uint64_t units_;              // of the block
  std::uint64_t done_ = 0;           // positions decoded
  std::uint64_t next_position_ = 0;  // in the block: the least that may come next
  std::vector<std::uint32_t> offsets_;
};

}  // namespace driftless
