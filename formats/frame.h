// SPDX-License-Identifier: Apache-2.0
// The native frame: one bucket as it travels over a road, or lies in a journal; or, as a full
// frame, whole stretches of tensors. docs/formats/frame.md gives the bytes; tests/golden holds
// examples. All little-endian:
//
//   header (128 bytes, fixed) | positions | values | table of blocks | xxh3-128 of the table
//
// A row of the table is a block of a tensor, or all of one: where its two streams lie, how each is
// compressed, and their hash. So a block can be fetched, proven and used without the others. The
// table comes last, since the hashes are known then: a frame is written front to back. Everything
// that a header or a row says is checked before anything is allocated, and what is not written in
// the one canonical way is refused: two frames differ exactly where their bytes do (compressed
// streams apart).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/kept_memory.h"
#include "core/layout.h"
#include "core/status.h"
#include "core/version.h"
#include "formats/bucket.h"
#include "formats/compact_table.h"
#include "formats/encoding.h"
#include "formats/zstd_stream.h"

namespace driftless {

inline constexpr std::size_t kFrameHeaderBytes = 128;
inline constexpr std::size_t kFrameTrailerBytes = 16;
inline constexpr std::size_t kFrameRowBytes = 64;  // of the table, each, and 16 for each dimension
inline constexpr std::uint16_t kFrameFormat = 2;

// Which version a frame belongs to.
struct FrameContext {
  VersionId id;
  std::uint64_t base_version = 0;
  Hash128 layout;  // signature
  Encoding encoding = Encoding::kIndices;
  std::uint32_t rank = 0;   // of the publisher
  std::uint32_t index = 0;  // of the frame among the rank's frames of the version

  friend bool operator==(const FrameContext&, const FrameContext&) = default;
};

// "rank0000_frame000000.frame": a frame as a file of a version.
[[nodiscard]] std::string frame_file_name(std::uint32_t rank, std::uint32_t index);

// Appends the frame to `out`. The bucket's coding must be the encoding's, and its entries must
// tile both streams in order, as a BucketBuilder leaves them. After a failure `out` is as it was.
[[nodiscard]] Status encode_frame(const FrameContext& context, const BucketView& bucket,
                                  std::vector<std::byte>& out);

// The same bytes into `sink`, front to back: nothing is held but the streams of `deltas_zstd`,
// whose sizes come before them. Ends at the sink's first failure. Returns frame_table_hash().
[[nodiscard]] Result<Hash128> write_frame(const FrameContext& context, const BucketView& bucket,
                                          const ByteSink& sink);

// Consecutive units of a tensor, or of a block of one, verbatim: what a full frame holds.
struct DenseRun {
  std::uint32_t tensor = 0;            // index in the layout
  std::uint64_t first_unit = 0;        // in the block
  std::span<const std::byte> bytes;    // of whole units
  const TensorBlock* block = nullptr;  // null: all of the tensor
};

// Appends a full frame (context.encoding is kFull) to `out`. The runs must have this dtype, lie
// inside their blocks, hold at least a unit each, and ascend by tensor; runs of one block follow
// each other, ascend, and neither overlap nor adjoin: what adjoins is one run. Blocks of a tensor
// do not meet. kInvalidArgument otherwise; `out` is then as it was.
[[nodiscard]] Status encode_full_frame(const FrameContext& context, const WeightLayout& layout,
                                       DType dtype, std::span<const DenseRun> runs,
                                       std::vector<std::byte>& out);

// A block whose changes are coded in tiles (compact.md).
struct CompactBlock {
  std::uint32_t tensor = 0;
  const TensorBlock* block = nullptr;  // null: all of the tensor
  std::uint32_t table = 0;             // its number among the frame's
  std::uint64_t changes = 0;           // at least 1
  std::span<const std::byte> index;    // append_compact_index()
  std::span<const std::byte> tiles;    // one after the other

  [[nodiscard]] std::uint64_t units(const WeightLayout& layout) const {
    return block != nullptr ? block->place.units : layout[tensor].units();
  }
};
// Appends a frame of `compact` to `out`: of blocks that have this dtype, each with one of `tables`,
// which are in the order of their first use. The blocks of a tensor do not meet. kInvalidArgument
// otherwise; `out` is then as it was.
[[nodiscard]] Status encode_compact_frame(const FrameContext& context, const WeightLayout& layout,
                                          DType dtype, std::span<const CompactTable> tables,
                                          std::span<const CompactBlock> blocks,
                                          std::vector<std::byte>& out);

// What the first kFrameHeaderBytes say; kCorrupt where they are damaged (the header has a hash of
// its own), kUnsupported for another version of the format.
struct FrameInfo {
  FrameContext context;
  DType dtype = DType::kU8;
  std::uint32_t entries = 0;                                          // rows of the table
  std::uint64_t frame_bytes = 0;                                      // all of it
  std::uint64_t table_bytes = 0;                                      // without the trailer
  std::uint64_t positions_bytes = 0, values_bytes = 0;                // before compression
  std::uint64_t stored_positions_bytes = 0, stored_values_bytes = 0;  // without padding

  // What a reader of the whole frame holds at most, beside the frame.
  [[nodiscard]] std::uint64_t body_bytes() const {
    return table_bytes + positions_bytes + values_bytes;
  }
};
[[nodiscard]] Result<FrameInfo> read_frame_header(std::span<const std::byte> frame);

// Bytes from the frame's beginning.
struct FramePlaces {
  std::uint64_t positions = 0;
  std::uint64_t values = 0;
  std::uint64_t table = 0;
  std::uint64_t trailer = 0;
};
[[nodiscard]] FramePlaces frame_places(const FrameInfo& info);

// The stored bytes of a block's positions or values.
struct FrameStream {
  std::uint64_t offset = 0;  // from the frame's beginning
  std::uint64_t size_bytes = 0;
  bool zstd = false;
};
// What a row says beside its entry.
struct FrameBlock {
  std::uint64_t first_unit = 0;  // of a full frame's run: in the block
  FrameStream positions, values;
  Hash128 hash;               // block_hash() of the stored streams
  std::uint64_t changes = 0;  // of `compact`, whose entry has bytes for values
};
// Of the xxh3-128 of a block's stored positions and of its stored values.
[[nodiscard]] Hash128 block_hash(const Hash128& positions, const Hash128& values);

// Header and table, read. Entries count in the streams before compression.
struct FrameHead {
  FrameInfo info;
  FramePlaces places;
  std::vector<BucketEntry> entries;
  std::vector<FrameBlock> blocks;                       // one for each entry
  std::vector<std::unique_ptr<const TensorBlock>> cut;  // that entries point to
  // Of `compact`: entries name theirs in position_bytes.
  std::shared_ptr<const std::vector<CompactTable>> tables;
};

// The head of a frame as bytes: its header, its table and its trailer, which lie at both ends of
// it. All that Frame::decode() checks is checked but what lies in the streams and their padding.
// Memory follows the size of `head`.
[[nodiscard]] Result<FrameHead> decode_frame_head(std::span<const std::byte> head,
                                                  const WeightLayout& layout);
// What the trailer says, which the end of a frame or of a head holds: at least
// kFrameTrailerBytes.
[[nodiscard]] Hash128 frame_table_hash(std::span<const std::byte> end);

// A decoded frame, or some blocks of one. Views point into the frame's bytes, or into memory of its
// own where a stream was compressed; the frame must outlive it.
class Frame {
 public:
  // `frame` is exactly one frame. Checks hashes, header, table (check_bucket; the runs of a full
  // frame) and the layout's signature (kWrongLayout). `max_body_bytes` bounds the body, and so what
  // is allocated. Positions of a delta are left to EntryCursor.
  [[nodiscard]] static Result<Frame> decode(std::span<const std::byte> frame,
                                            const WeightLayout& layout,
                                            std::uint64_t max_body_bytes);

  // The same for a frame whose bytes this process must not follow, in a GPU's memory say, from its
  // head: bucket() and runs() point into `frame`. The hashes of its blocks are proven by who hands
  // it over. kUnsupported for a compressed one.
  [[nodiscard]] static Result<Frame> decode_head(std::span<const std::byte> head,
                                                 std::span<const std::byte> frame,
                                                 const WeightLayout& layout,
                                                 std::uint64_t max_body_bytes);

  [[nodiscard]] const FrameInfo& info() const { return head_.info; }
  // A full frame has runs(), one of `compact` has compact_blocks(), any other a bucket(); what it
  // has not is empty.
  [[nodiscard]] bool dense() const { return info().context.encoding == Encoding::kFull; }
  [[nodiscard]] BucketView bucket() const;
  [[nodiscard]] std::vector<DenseRun> runs() const;
  [[nodiscard]] bool compact() const { return info().context.encoding == Encoding::kCompact; }
  // The blocks that are held, and the index of one of them, read. The layout is the frame's.
  [[nodiscard]] std::vector<CompactBlock> compact_blocks() const;
  [[nodiscard]] std::span<const CompactTable> compact_tables() const;
  [[nodiscard]] static Result<CompactIndex> read_index(const WeightLayout& layout,
                                                       const CompactBlock& block);
  // Entries of the table that are not held here (FrameCollector). Their ranges mean nothing.
  [[nodiscard]] std::span<const BucketEntry> others() const { return others_; }
  [[nodiscard]] std::span<const std::uint64_t> other_first_units() const {
    return other_first_units_;
  }

 private:
  friend class FrameCollector;
  friend class FrameReader;
  [[nodiscard]] Status read_streams(std::span<const std::byte> frame);
  [[nodiscard]] Status inflate(std::span<const std::byte> frame);
  // Room for the streams before compression, which positions_ and values_ then are.
  [[nodiscard]] Status allocate(std::uint64_t positions_bytes, std::uint64_t values_bytes,
                                KeptMemory* memory);
  [[nodiscard]] Status check_widths(const WeightLayout& layout) const;

  FrameHead head_;
  std::vector<BucketEntry> others_;
  std::vector<std::uint64_t> other_first_units_;
  std::shared_ptr<std::byte> inflated_;
  std::span<const std::byte> positions_;
  std::span<const std::byte> values_;
};

// Frame::decode() by several threads: a frame is opened, each of its streams is read, then it is
// finished. It checks what Frame::decode() checks. Which of several faults it names may differ: who
// must name the first one calls Frame::decode() then.
//
// One thread opens and finishes; read() may be called by several at once, for different streams.
// The frame's bytes and the layout outlive it.
class FrameReader {
 public:
  // Header and table, as Frame::decode(). Streams that are compressed get their room from `memory`
  // (null: memory of their own).
  [[nodiscard]] static Result<FrameReader> open(std::span<const std::byte> frame,
                                                const WeightLayout& layout,
                                                std::uint64_t max_body_bytes, KeptMemory* memory);
  // Two for each entry: its positions, then its values.
  [[nodiscard]] std::size_t streams() const { return 2 * frame_.head_.entries.size(); }
  [[nodiscard]] std::uint64_t stored_bytes(std::size_t stream) const {
    return stream_of(stream).size_bytes;
  }
  // Hashes the stream, and inflates it if it is compressed. Each stream once.
  [[nodiscard]] Status read(std::size_t stream, ZstdUnpacker& zstd);
  // Once every stream was read: kCorrupt, naming the tensor, if a block has not its hash.
  [[nodiscard]] Result<Frame> finish(const WeightLayout& layout);

 private:
  [[nodiscard]] const FrameStream& stream_of(std::size_t stream) const {
    const FrameBlock& block = frame_.head_.blocks[stream / 2];
    return stream % 2 == 0 ? block.positions : block.values;
  }

  Frame frame_;
  std::span<const std::byte> bytes_;  // of the frame
  std::vector<Hash128> hashes_;       // of each stream; written by who reads it
};

// Bytes of a frame.
struct FrameRange {
  std::uint64_t offset = 0;
  std::uint64_t size_bytes = 0;
};

// Puts a frame together from those blocks of it that are needed, fetched stream by stream. Holds
// these blocks, compact, and no more.
class FrameCollector {
 public:
  using Needed = std::function<bool(const BucketEntry&)>;
  // `head` as for decode_frame_head(); `max_body_bytes` bounds what is allocated, from `memory`
  // (null: memory of its own).
  [[nodiscard]] static Result<FrameCollector> open(std::span<const std::byte> head,
                                                   const WeightLayout& layout,
                                                   std::uint64_t max_body_bytes,
                                                   const Needed& needed,
                                                   KeptMemory* memory = nullptr);
  // Whether every block is needed: then the whole frame may as well be fetched.
  [[nodiscard]] bool all() const { return frame_.others_.empty(); }
  // What is to be fetched: the stored streams of the needed blocks, ascending.
  [[nodiscard]] const std::vector<FrameRange>& ranges() const { return ranges_; }
  // The bytes of one of the ranges. Called once for each, from any thread.
  [[nodiscard]] Status take(std::size_t range, std::span<const std::byte> bytes);
  // Once every range was taken: kCorrupt, naming the tensor, if a block has not its hash.
  [[nodiscard]] Result<Frame> finish(const WeightLayout& layout);

 private:
  struct Stream {
    std::size_t entry = 0;
    bool values = false;
    bool zstd = false;
    std::uint64_t at = 0, content_bytes = 0;  // in the frame's own memory
  };
  Frame frame_;
  std::vector<FrameRange> ranges_;
  std::vector<Stream> streams_;  // one for each range
  std::vector<Hash128> hashes_;  // two for each entry
};

// --- Frames whose streams lie elsewhere, in a GPU's memory say: put together as
//
//   header | positions | values | table and trailer
//
// with zeros from the end of a stream to its next multiple of 8 bytes; places are multiples of 8.
// kUnsupported for kDeltasZstd, whose streams are not stored as they are.
struct FramePlan {
  std::vector<std::byte> header;
  FramePlaces places;
  std::uint64_t frame_bytes = 0;
};
// Of a delta's frame. Entries tile both streams, in order, as for encode_frame(); what the streams
// hold is up to the caller.
[[nodiscard]] Result<FramePlan> plan_frame(const FrameContext& context, const BucketShape& bucket);
// The rest of it: `hashes` has block_hash() of each entry's streams.
[[nodiscard]] Result<std::vector<std::byte>> encode_frame_table(const FrameContext& context,
                                                                const BucketShape& bucket,
                                                                std::span<const Hash128> hashes);

}  // namespace driftless
