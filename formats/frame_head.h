// SPDX-License-Identifier: Apache-2.0
// Frames whose streams lie elsewhere, in a GPU's memory say: the front of a frame, made and read
// without them. A frame (frame.h) is put together as
//
//   head: header, table, and of a full frame the first unit of each run | positions | values | hash
//
// with zeros from the end of a stream to its next multiple of 8 bytes; offsets are multiples of 8.
// Encodings: kIndices, kDeltas, kFull. kUnsupported for kDeltasZstd, whose body is one zstd frame.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/layout.h"
#include "core/status.h"
#include "formats/bucket.h"
#include "formats/frame.h"

namespace driftless {

// Bytes from the frame's beginning.
struct FramePlaces {
  std::uint64_t head_bytes = 0;
  std::uint64_t positions = 0;  // of a full frame: inside the head
  std::uint64_t values = 0;
  std::uint64_t trailer = 0;
};
// From what read_frame_header() returned, of a plain frame.
[[nodiscard]] FramePlaces frame_places(const FrameInfo& info);

// A run of a full frame without its bytes.
struct RunPlace {
  std::uint32_t tensor = 0;  // index in the layout
  std::uint64_t first_unit = 0;
  std::uint64_t units = 0;
  std::uint64_t value_begin = 0;  // units, in the values stream

  friend bool operator==(const RunPlace&, const RunPlace&) = default;
};

struct EncodedFrameHead {
  std::vector<std::byte> bytes;
  FramePlaces places;
  std::uint64_t frame_bytes = 0;
};

// Of a delta's frame. Entries tile both streams, in order, as for encode_frame(); what the streams
// hold is up to the caller.
[[nodiscard]] Result<EncodedFrameHead> encode_frame_head(const FrameContext& context,
                                                         const BucketShape& bucket);
// Of a full frame. Runs as encode_full_frame() wants them; in the values stream one behind the
// other.
[[nodiscard]] Result<EncodedFrameHead> encode_full_frame_head(const FrameContext& context,
                                                              const WeightLayout& layout,
                                                              DType dtype,
                                                              std::span<const RunPlace> runs);

// The frame's end: the xxh3-128 of all bytes before it, padding included.
[[nodiscard]] std::array<std::byte, kFrameTrailerBytes> frame_trailer(const Hash128& hash);
[[nodiscard]] Hash128 read_frame_trailer(std::span<const std::byte, kFrameTrailerBytes> trailer);

struct FrameHead {
  FrameInfo info;
  FramePlaces places;
  std::vector<BucketEntry> entries;  // a delta's
  std::vector<RunPlace> runs;        // a full frame's
};

// How many bytes decode_frame_head() needs: of a frame that states this, known from its header.
[[nodiscard]] Result<std::uint64_t> frame_head_bytes(const FrameInfo& info);
// `front`: the frame's first bytes, at least frame_head_bytes(). Everything that Frame::decode()
// checks is checked but what lies in the streams, their padding and the trailer: positions are left
// to who reads them, and the hash of the whole must have been proven by somebody. Memory follows
// the size of `front`.
[[nodiscard]] Result<FrameHead> decode_frame_head(std::span<const std::byte> front,
                                                  const WeightLayout& layout);

}  // namespace driftless
