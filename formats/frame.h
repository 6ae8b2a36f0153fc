// SPDX-License-Identifier: Apache-2.0
// The native frame: the bytes of one bucket, of blocks in `compact`, or (a full frame) of stretches
// of tensors, on a road or in a journal. docs/formats/frame.md specifies them, and tests/golden has
// examples. All numbers are little-endian:
//
//   header (128 bytes, fixed) | positions | values | table of blocks | xxh3-128 of the table
//
// A row of the table describes a block of a tensor, or a whole tensor: the places of its two
// streams, their compression, and their hash. So a block can be fetched, proven and used without
// the others. The table comes last, because the hashes are known only then: a frame is written
// front to back. Readers check every field of header and rows before they allocate, and refuse
// every form but the canonical one: frames with equal content have equal bytes (except compressed
// streams).
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
#include "core/memory_kind.h"
#include "core/status.h"
#include "core/version.h"
#include "formats/bucket.h"
#include "formats/compact_table.h"
#include "formats/encoding.h"
#include "formats/zstd_stream.h"

namespace driftless {

inline constexpr std::size_t kFrameHeaderBytes = 128;
inline constexpr std::size_t kFrameTrailerBytes = 16;
inline constexpr std::size_t kFrameRowBytes = 64;  // of the table; plus 16 for each dimension
inline constexpr std::uint16_t kFrameFormat = 2;

// The version of a frame, and the frame's place in that version.
struct FrameContext {
  VersionId id;
  std::uint64_t base_version = 0;
  Hash128 layout;  // signature
  Encoding encoding = Encoding::kIndices;
  std::uint32_t rank = 0;   // of the publisher
  std::uint32_t index = 0;  // among the rank's frames of the version

  friend bool operator==(const FrameContext&, const FrameContext&) = default;
};

// "rank0000_frame000000.frame": a frame as a file of a version.
[[nodiscard]] std::string frame_file_name(std::uint32_t rank, std::uint32_t index);

// Appends the frame to `out`. The bucket's coding must match the encoding, and its entries must
// tile both streams in order, as a BucketBuilder leaves them. After a failure `out` is unchanged.
[[nodiscard]] Status encode_frame(const FrameContext& context, const BucketView& bucket,
                                  std::vector<std::byte>& out);

// Writes the same bytes into `sink`, front to back. Makes a frame of `deltas_zstd` in memory first,
// because its header states sizes. Stops at the sink's first failure. Returns frame_table_hash().
[[nodiscard]] Result<Hash128> write_frame(const FrameContext& context, const BucketView& bucket,
                                          const ByteSink& sink);

// Consecutive units of a tensor or a block, uncoded: the content of a full frame.
struct DenseRun {
  std::uint32_t tensor = 0;            // index in the layout
  std::uint64_t first_unit = 0;        // in the block
  std::span<const std::byte> bytes;    // whole units
  const TensorBlock* block = nullptr;  // null: all of the tensor
};

// Appends a full frame (context.encoding is kFull) to `out`. The runs must have this dtype, lie
// inside their blocks, hold at least one unit each, and ascend by tensor. Runs of one block follow
// each other, ascend, and neither overlap nor adjoin: adjoining units form one run. Blocks of a
// tensor must not overlap. Otherwise kInvalidArgument, and `out` is unchanged.
[[nodiscard]] Status encode_full_frame(const FrameContext& context, const WeightLayout& layout,
                                       DType dtype, std::span<const DenseRun> runs,
                                       std::vector<std::byte>& out);

// A block whose changes are coded in tiles (compact.md).
struct CompactBlock {
  std::uint32_t tensor = 0;
  const TensorBlock* block = nullptr;  // null: all of the tensor
  std::uint32_t table = 0;             // number of its table in the frame
  std::uint64_t changes = 0;           // at least 1
  std::span<const std::byte> index;    // from append_compact_index()
  std::span<const std::byte> tiles;    // the tiles, one after the other

  [[nodiscard]] std::uint64_t units(const WeightLayout& layout) const {
    return block != nullptr ? block->place.units : layout[tensor].units();
  }
};
// Appends a frame of `compact` to `out`. Its blocks have this dtype; each refers to one of
// `tables`, which are in the order of their first use. Blocks of a tensor must not overlap.
// Otherwise kInvalidArgument, and `out` is unchanged.
[[nodiscard]] Status encode_compact_frame(const FrameContext& context, const WeightLayout& layout,
                                          DType dtype, std::span<const CompactTable> tables,
                                          std::span<const CompactBlock> blocks,
                                          std::vector<std::byte>& out);

// The content of the first kFrameHeaderBytes. Reading it returns kCorrupt if they are damaged (the
// header has its own hash), kUnsupported for another version of the format.
struct FrameInfo {
  FrameContext context;
  DType dtype = DType::kU8;
  std::uint32_t entries = 0;                                          // rows of the table
  std::uint64_t frame_bytes = 0;                                      // of the whole frame
  std::uint64_t table_bytes = 0;                                      // without the trailer
  std::uint64_t positions_bytes = 0, values_bytes = 0;                // before compression
  std::uint64_t stored_positions_bytes = 0, stored_values_bytes = 0;  // without padding

  // The most memory that a reader of the whole frame needs besides the frame.
  [[nodiscard]] std::uint64_t body_bytes() const {
    return table_bytes + positions_bytes + values_bytes;
  }
};
[[nodiscard]] Result<FrameInfo> read_frame_header(std::span<const std::byte> frame);

// Where the sections of a frame begin, in bytes from the frame's beginning.
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
// The fields of a row besides its entry.
struct FrameBlock {
  std::uint64_t first_unit = 0;  // of a full frame's run, within the block
  FrameStream positions, values;
  Hash128 hash;               // block_hash() of the stored streams
  std::uint64_t changes = 0;  // of `compact`, whose entry counts values in bytes
};
// Combines the xxh3-128 of a block's stored positions and that of its stored values.
[[nodiscard]] Hash128 block_hash(const Hash128& positions, const Hash128& values);

// A frame's header and table. Ranges of entries count in the uncompressed streams.
struct FrameHead {
  FrameInfo info;
  FramePlaces places;
  std::vector<BucketEntry> entries;
  std::vector<FrameBlock> blocks;                       // one for each entry
  std::vector<std::unique_ptr<const TensorBlock>> cut;  // the blocks that entries point to
  // For `compact`; position_bytes of an entry is the number of its table.
  std::shared_ptr<const std::vector<CompactTable>> tables;
};

// Reads the head of a frame: header, table and trailer, which lie at both ends of the frame. Makes
// all checks of Frame::decode() except those of the streams and their padding. Memory grows with
// the size of `head`.
[[nodiscard]] Result<FrameHead> decode_frame_head(std::span<const std::byte> head,
                                                  const WeightLayout& layout);
// The hash in the trailer. `end` is the end of a frame or of a head, at least kFrameTrailerBytes.
[[nodiscard]] Hash128 frame_table_hash(std::span<const std::byte> end);

// A decoded frame, or some blocks of one. Views point into the frame's bytes or, for compressed
// streams, into memory of this object; the frame's bytes must outlive it.
class Frame {
 public:
  // `frame` is exactly one frame. Checks hashes, header, table (check_bucket; the runs of a full
  // frame) and the layout's signature (kWrongLayout). `max_body_bytes` limits the body and thereby
  // the memory. EntryCursor checks the positions of a delta.
  [[nodiscard]] static Result<Frame> decode(std::span<const std::byte> frame,
                                            const WeightLayout& layout,
                                            std::uint64_t max_body_bytes);

  // Decodes a frame from its head, if this process cannot read the frame's bytes (GPU memory, for
  // example): bucket() and runs() point into `frame`. The caller must have proven the hashes of the
  // blocks. kUnsupported for a frame of `deltas_zstd` or `compact`.
  [[nodiscard]] static Result<Frame> decode_head(std::span<const std::byte> head,
                                                 std::span<const std::byte> frame,
                                                 const WeightLayout& layout,
                                                 std::uint64_t max_body_bytes);

  [[nodiscard]] const FrameInfo& info() const { return head_.info; }
  // Where bucket() and runs() lie. kDevice: after decode_head() or
  // FrameCollector::open_on_device().
  [[nodiscard]] MemoryKind memory() const { return memory_; }
  // A full frame has runs(), one of `compact` has compact_blocks(), any other a bucket(). The other
  // two are empty.
  [[nodiscard]] bool dense() const { return info().context.encoding == Encoding::kFull; }
  [[nodiscard]] BucketView bucket() const;
  [[nodiscard]] std::vector<DenseRun> runs() const;
  [[nodiscard]] bool compact() const { return info().context.encoding == Encoding::kCompact; }
  // The blocks that this object holds, and the index of one of them. `layout` must be the frame's.
  [[nodiscard]] std::vector<CompactBlock> compact_blocks() const;
  [[nodiscard]] std::span<const CompactTable> compact_tables() const;
  [[nodiscard]] static Result<CompactIndex> read_index(const WeightLayout& layout,
                                                       const CompactBlock& block);
  // Entries of the table whose blocks this object does not hold (FrameCollector). Their ranges have
  // no meaning.
  [[nodiscard]] std::span<const BucketEntry> others() const { return others_; }
  [[nodiscard]] std::span<const std::uint64_t> other_first_units() const {
    return other_first_units_;
  }

 private:
  friend class FrameCollector;
  friend class FrameReader;
  [[nodiscard]] Status read_streams(std::span<const std::byte> frame);
  [[nodiscard]] Status inflate(std::span<const std::byte> frame);
  // Allocates memory for the uncompressed streams; positions_ and values_ then refer to it.
  [[nodiscard]] Status allocate(std::uint64_t positions_bytes, std::uint64_t values_bytes,
                                KeptMemory* memory);
  [[nodiscard]] Status check_widths(const WeightLayout& layout) const;

  FrameHead head_;
  std::vector<BucketEntry> others_;
  std::vector<std::uint64_t> other_first_units_;
  std::shared_ptr<std::byte> inflated_;
  std::span<const std::byte> positions_;
  std::span<const std::byte> values_;
  MemoryKind memory_ = MemoryKind::kHost;
};

// Frame::decode() by several threads: open a frame, read each of its streams, then finish. Makes
// the same checks. If there are several faults it may name another one than Frame::decode() does; a
// caller that must name the first one then calls Frame::decode().
//
// One thread opens and finishes; several threads may call read() at once, for different streams.
// The frame's bytes and the layout must outlive it.
class FrameReader {
 public:
  // Checks header and table as Frame::decode() does. Memory for compressed streams comes from
  // `memory` (null: the heap).
  [[nodiscard]] static Result<FrameReader> open(std::span<const std::byte> frame,
                                                const WeightLayout& layout,
                                                std::uint64_t max_body_bytes, KeptMemory* memory);
  // Two streams for each entry: positions, then values.
  [[nodiscard]] std::size_t streams() const { return 2 * frame_.head_.entries.size(); }
  [[nodiscard]] std::uint64_t stored_bytes(std::size_t stream) const {
    return stream_of(stream).size_bytes;
  }
  // Hashes the stream and inflates it if it is compressed. Call it once for each stream.
  [[nodiscard]] Status read(std::size_t stream, ZstdUnpacker& zstd);
  // Call it after every stream was read. kCorrupt, naming the tensor, if the hash of a block
  // differs.
  [[nodiscard]] Result<Frame> finish(const WeightLayout& layout);

 private:
  [[nodiscard]] const FrameStream& stream_of(std::size_t stream) const {
    const FrameBlock& block = frame_.head_.blocks[stream / 2];
    return stream % 2 == 0 ? block.positions : block.values;
  }

  Frame frame_;
  std::span<const std::byte> bytes_;  // of the frame
  std::vector<Hash128> hashes_;       // of each stream; written by the thread that reads it
};

// A range of bytes of a frame.
struct FrameRange {
  std::uint64_t offset = 0;
  std::uint64_t size_bytes = 0;
};

// Assembles a frame from the blocks that are needed, fetched stream by stream. Its memory holds
// only these blocks.
class FrameCollector {
 public:
  using Needed = std::function<bool(const BucketEntry&)>;
  // `head` as for decode_frame_head(); `max_body_bytes` limits the memory, which comes from
  // `memory` (null: the heap).
  [[nodiscard]] static Result<FrameCollector> open(std::span<const std::byte> head,
                                                   const WeightLayout& layout,
                                                   std::uint64_t max_body_bytes,
                                                   const Needed& needed,
                                                   KeptMemory* memory = nullptr);
  // The same for blocks that are fetched into memory of a GPU, which this process cannot read. The
  // caller passes such memory to place(), fetches each range to its place there, computes its hash
  // there, and passes the hash to prove() instead of calling take(). Does not check positions: the
  // code that uses the frame on the device does. kUnsupported for the encodings that decode_head()
  // refuses.
  [[nodiscard]] static Result<FrameCollector> open_on_device(std::span<const std::byte> head,
                                                             const WeightLayout& layout,
                                                             std::uint64_t max_body_bytes,
                                                             const Needed& needed);
  // Size of that memory, which must be aligned to 8 bytes.
  [[nodiscard]] std::uint64_t device_bytes() const;
  void place(std::shared_ptr<std::byte> memory_dev);
  // Where a range belongs, from the beginning of that memory.
  [[nodiscard]] std::uint64_t place_of(std::size_t range) const { return streams_[range].at; }
  // The xxh3-128 of the range as it lies there.
  void prove(std::size_t range, const Hash128& hash);

  // Whether every block is needed; the caller may then fetch the whole frame instead.
  [[nodiscard]] bool all() const { return frame_.others_.empty(); }
  // The ranges to fetch: the stored streams of the needed blocks, ascending.
  [[nodiscard]] const std::vector<FrameRange>& ranges() const { return ranges_; }
  // Takes the bytes of one range. Call it once for each range, from any thread.
  [[nodiscard]] Status take(std::size_t range, std::span<const std::byte> bytes);
  // Call it after every range was taken. kCorrupt, naming the tensor, if the hash of a block
  // differs.
  [[nodiscard]] Result<Frame> finish(const WeightLayout& layout);

 private:
  struct Stream {
    std::size_t entry = 0;
    bool values = false;
    bool zstd = false;
    std::uint64_t at = 0, content_bytes = 0;  // in the frame's own memory
  };
  // Everything but the memory.
  [[nodiscard]] static Result<FrameCollector> plan(std::span<const std::byte> head,
                                                   const WeightLayout& layout,
                                                   std::uint64_t max_body_bytes,
                                                   const Needed& needed);
  Frame frame_;
  std::uint64_t positions_bytes_ = 0, values_bytes_ = 0;
  std::vector<FrameRange> ranges_;
  std::vector<Stream> streams_;  // one for each range
  std::vector<Hash128> hashes_;  // two for each entry
};

// --- Frames whose streams are elsewhere, in GPU memory for example. The caller assembles them as
//
//   header | positions | values | table and trailer
//
// with zeros from the end of each stream to its next multiple of 8 bytes; all places are multiples
// of 8. kUnsupported for kDeltasZstd, whose streams are stored in another form.
struct FramePlan {
  std::vector<std::byte> header;
  FramePlaces places;
  std::uint64_t frame_bytes = 0;
};
// Plans the frame of a delta. Entries must tile both streams in order, as for encode_frame(); the
// content of the streams is not checked.
[[nodiscard]] Result<FramePlan> plan_frame(const FrameContext& context, const BucketShape& bucket);
// The table and trailer of the planned frame. `hashes` holds block_hash() of each entry's streams.
[[nodiscard]] Result<std::vector<std::byte>> encode_frame_table(const FrameContext& context,
                                                                const BucketShape& bucket,
                                                                std::span<const Hash128> hashes);

}  // namespace driftless
