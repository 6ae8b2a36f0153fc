// SPDX-License-Identifier: Apache-2.0
// A bucket: the encoded deltas of several tensors or blocks of one dtype. It has a stream of
// positions, a stream of values, and a table that assigns stretches of both to tensors and blocks.
// Frames (frame.h) and flush files (flush_file.h) are two containers of the same bucket.
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

// Positions of an entry count inside its block and ascend strictly. kIndices stores the positions:
// int32, or int64 if the block has more than 2^31 units. kDeltas stores gaps p[k] - p[k-1] - 1 with
// p[-1] = -1: uint16, or uint32 or uint64 if one gap of the entry needs it.
struct BucketEntry {
  std::uint32_t tensor = 0;                            // index in the layout
  unsigned position_bytes = 4;                         // 2, 4 or 8
  std::uint64_t position_begin = 0, position_end = 0;  // bytes of the positions stream
  std::uint64_t value_begin = 0, value_end = 0;        // units of the values stream
  // The block of the tensor; null: the whole tensor. The owner of the bucket's streams owns it.
  const TensorBlock* block = nullptr;

  [[nodiscard]] std::uint64_t count() const { return value_end - value_begin; }
};

// A bucket without the bytes of its streams, which may be in memory that this process cannot read.
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

// Collects deltas; the owner decides when the bucket is full. Keeps its memory between buckets. The
// layout must outlive it. One thread at a time.
class BucketBuilder {
 public:
  // `encoding` is kIndices, kDeltas or kDeltasZstd (which codes like kDeltas).
  BucketBuilder(const WeightLayout& layout, Encoding encoding);

  [[nodiscard]] bool empty() const { return entries_.empty(); }
  [[nodiscard]] std::uint64_t size_bytes() const { return positions_.size() + values_.size(); }
  // Whether the bucket can take this delta: it is empty or holds the same dtype.
  [[nodiscard]] bool accepts(const DeltaView& delta) const;
  // Appends a delta. If the last entry is of the same tensor or block, extends it (positions must
  // ascend). An empty delta adds nothing. With `block`, which must outlive the bucket's content,
  // positions count inside the block. After a failure the bucket is unchanged: kNoSpace without
  // memory; kInvalidArgument if the delta does not fit the layout, does not ascend, or is of a
  // whole tensor that has an entry already, before the last one.
  [[nodiscard]] Status add(const DeltaView& delta, const TensorBlock* block = nullptr);
  // The first gap of this delta: the number of positions between the end of the entry that it would
  // extend, or the beginning, and its own first position.
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
  // For each tensor: the number of the last bucket that held it as a whole tensor.
  std::vector<std::uint32_t> bucket_;
  std::uint32_t bucket_number_ = 1;
};

// Limit for the blocks of one tensor in a bucket or a version, because blocks are compared in
// pairs.
inline constexpr std::size_t kMaxBlocksOfTensor = 1024;

// kCorrupt, naming the tensor, if the blocks of two entries overlap or there are too many. With
// `runs`, consecutive entries of the same block count once.
[[nodiscard]] Status check_apart(const WeightLayout& layout, std::span<const BucketEntry> entries,
                                 bool runs);

// Checks a bucket from outside against the layout: tensors exist and have the bucket's dtype; no
// tensor or block occurs twice; no two blocks overlap; no entry is empty; ranges follow each other
// from the beginning to the end of both streams; widths are allowed; counts agree. EntryCursor
// checks the positions.
[[nodiscard]] Status check_bucket(const WeightLayout& layout, const BucketShape& bucket);
// Checks one entry: tensor, dtype, width, and that its ranges lie within the streams. EntryCursor
// relies on this.
[[nodiscard]] Status check_entry(const WeightLayout& layout, const BucketShape& bucket,
                                 const BucketEntry& entry);

// Decodes one checked entry piece by piece into positions in the tensor. Refuses (kCorrupt)
// positions that do not ascend or lie past the block's end. The bucket's streams and the layout
// must outlive it.
class EntryCursor {
 public:
  EntryCursor(const WeightLayout& layout, const BucketView& bucket, const BucketEntry& entry);

  // The next piece of up to 16384 positions; empty at the end. Valid until the next call. After a
  // failure every further call fails.
  [[nodiscard]] Result<DeltaView> next();

 private:
  // Decodes up to `wanted` positions into offsets_, relative to `origin`. Returns their number:
  // fewer if the next one is too far from the origin, 0 if they are not valid.
  template <typename T>
  [[nodiscard]] std::size_t decode_gaps(std::size_t wanted, std::uint64_t& origin);
  template <typename T>
  [[nodiscard]] std::size_t decode_indices(std::size_t wanted, std::uint64_t& origin);
  [[nodiscard]] std::size_t decode(std::size_t wanted, std::uint64_t& origin);
  // Converts positions in the block to positions in the tensor. Returns the number of converted
  // ones: fewer than `count` if the next one is too far from the first.
  [[nodiscard]] std::size_t place(std::size_t count, std::uint64_t& origin);

  const WeightLayout* layout_;
  BucketView bucket_;
  BucketEntry entry_;
  std::uint64_t units_;              // of the block
  std::uint64_t done_ = 0;           // positions decoded
  std::uint64_t next_position_ = 0;  // least allowed next position in the block
  std::vector<std::uint32_t> offsets_;
};

}  // namespace driftless
