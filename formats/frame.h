// SPDX-License-Identifier: Apache-2.0
// The native frame: one bucket as it travels over a road, or lies in a journal; or, as a full
// frame, whole stretches of tensors. docs/formats/frame.md gives the bytes; tests/golden holds
// examples. All little-endian:
//
//   header (128 bytes, fixed) | body: entry table, positions stream, values stream | xxh3-128 of
//   all before
//
// With `deltas_zstd` the body is one zstd frame. Everything in the header is checked before
// anything is allocated, and what is not written in the one canonical way is refused: two frames
// differ exactly where their bytes do (compressed bodies apart).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/layout.h"
#include "core/status.h"
#include "core/version.h"
#include "formats/bucket.h"
#include "formats/byte_buffer.h"
#include "formats/encoding.h"
#include "formats/zstd_stream.h"

namespace driftless {

inline constexpr std::size_t kFrameHeaderBytes = 128;
inline constexpr std::size_t kFrameTrailerBytes = 16;
inline constexpr std::size_t kFrameEntryBytes = 16;  // of the table, each
inline constexpr std::uint16_t kFrameFormat = 1;

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

// The same bytes into `sink`, front to back: nothing is held but the body of `deltas_zstd`, whose
// size comes before it. Ends at the sink's first failure.
[[nodiscard]] Status write_frame(const FrameContext& context, const BucketView& bucket,
                                 const ByteSink& sink);

// Consecutive units of a tensor, verbatim: what a full frame holds.
struct DenseRun {
  std::uint32_t tensor = 0;  // index in the layout
  std::uint64_t first_unit = 0;
  std::span<const std::byte> bytes;  // of whole units
};

// Appends a full frame (context.encoding is kFull) to `out`. The runs must have this dtype, lie
// inside their tensors, hold at least a unit each, ascend by tensor and unit, and neither overlap
// nor adjoin: what adjoins is one run. kInvalidArgument otherwise; `out` is then as it was.
[[nodiscard]] Status encode_full_frame(const FrameContext& context, const WeightLayout& layout,
                                       DType dtype, std::span<const DenseRun> runs,
                                       std::vector<std::byte>& out);

// What the first kFrameHeaderBytes say; kCorrupt where they are damaged (the header has a hash of
// its own), kUnsupported for a newer version of the format.
struct FrameInfo {
  FrameContext context;
  DType dtype = DType::kU8;
  std::uint64_t frame_bytes = 0;                        // all of it
  std::uint64_t body_bytes = 0;                         // after decompression
  std::uint64_t stored_bytes = 0;                       // of the body, as it lies in the frame
  std::uint64_t positions_bytes = 0, values_bytes = 0;  // of the streams, without padding
  std::uint32_t entries = 0;
};
[[nodiscard]] Result<FrameInfo> read_frame_header(std::span<const std::byte> frame);

// Bytes from the frame's beginning.
struct FramePlaces {
  std::uint64_t head_bytes = 0;
  std::uint64_t positions = 0;  // of a full frame: inside the head
  std::uint64_t values = 0;
  std::uint64_t trailer = 0;
};

// What lies before the streams, read.
struct FrameHead {
  FrameInfo info;
  FramePlaces places;
  std::vector<BucketEntry> entries;
  std::vector<std::uint64_t> first_units;  // of a full frame's runs, one for each entry
};

// A decoded frame. Views point into the frame's bytes, or into memory of its own where the body was
// compressed; the frame must outlive it.
class Frame {
 public:
  // `frame` is exactly one frame. Checks hash, header, table (check_bucket; the runs of a full
  // frame) and the layout's signature (kWrongLayout). `max_body_bytes` bounds the body, and so what
  // is allocated. Positions of a delta are left to EntryCursor.
  [[nodiscard]] static Result<Frame> decode(std::span<const std::byte> frame,
                                            const WeightLayout& layout,
                                            std::uint64_t max_body_bytes);

  // The same for a frame whose bytes this process must not follow, in a GPU's memory say, from its
  // front (below): bucket() and runs() point into `frame`. Its hash is proven by who hands
  // it over. kUnsupported for a compressed one.
  [[nodiscard]] static Result<Frame> decode_front(std::span<const std::byte> front,
                                                  std::span<const std::byte> frame,
                                                  const WeightLayout& layout,
                                                  std::uint64_t max_body_bytes);

  [[nodiscard]] const FrameInfo& info() const { return head_.info; }
  // A full frame has runs(), any other a bucket(); what it has not is empty.
  [[nodiscard]] bool dense() const { return info().context.encoding == Encoding::kFull; }
  [[nodiscard]] BucketView bucket() const;
  [[nodiscard]] std::vector<DenseRun> runs() const;

 private:
  [[nodiscard]] Status inflate(std::span<const std::byte> stored);
  [[nodiscard]] Status read_body(std::span<const std::byte> body);

  FrameHead head_;
  ByteBuffer inflated_;
  std::span<const std::byte> positions_;
  std::span<const std::byte> values_;
};

// --- Frames whose streams lie elsewhere, in a GPU's memory say: the front of a frame, made and
// read without them. A frame is put together as
//
//   head: header, table, and of a full frame the first unit of each run | positions | values | hash
//
// with zeros from the end of a stream to its next multiple of 8 bytes; offsets are multiples of 8.
// kUnsupported for kDeltasZstd, whose body is one zstd frame.

// From what read_frame_header() returned, of a plain frame.
[[nodiscard]] FramePlaces frame_places(const FrameInfo& info);

struct EncodedFrameHead {
  std::vector<std::byte> bytes;
  FramePlaces places;
  std::uint64_t frame_bytes = 0;
};

// Of a delta's frame; kUnsupported if it is compressed. Entries tile both streams, in order, as for
// encode_frame(); what the streams hold is up to the caller.
[[nodiscard]] Result<EncodedFrameHead> encode_frame_head(const FrameContext& context,
                                                         const BucketShape& bucket);
// The frame's end: the xxh3-128 of all bytes before it, padding included.
[[nodiscard]] std::array<std::byte, kFrameTrailerBytes> frame_trailer(const Hash128& hash);

// How many bytes decode_frame_head() needs: of a frame that states this, known from its header.
[[nodiscard]] Result<std::uint64_t> frame_head_bytes(const FrameInfo& info);
// `front`: the frame's first bytes, at least frame_head_bytes(). Everything that Frame::decode()
// checks is checked but what lies in the streams, their padding and the trailer: positions are left
// to who reads them, and the hash of the whole must have been proven by somebody. Memory follows
// the size of `front`.
[[nodiscard]] Result<FrameHead> decode_frame_head(std::span<const std::byte> front,
                                                  const WeightLayout& layout);

}  // namespace driftless
