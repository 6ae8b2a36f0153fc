// SPDX-License-Identifier: Apache-2.0
// Input: the front of a frame. It is decoded as it is, and once more with the header's hash made
// right. What is accepted must be the head that its content encodes to.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "formats/frame.h"
#include "support/golden_case.h"

namespace {

using namespace driftless;

// The head, and of a full frame all of it, with zeros for values.
Result<testing::Bytes> encode_again(const FrameHead& head, const WeightLayout& layout) {
  const FrameInfo& info = head.info;
  if (info.context.encoding != Encoding::kFull) {
    DRIFTLESS_ASSIGN_OR_RETURN(
        EncodedFrameHead again,
        encode_frame_head(info.context, BucketShape(info.context.encoding, info.dtype, head.entries,
                                                    info.positions_bytes, info.values_bytes)));
    if (again.frame_bytes != info.frame_bytes) std::abort();
    return std::move(again.bytes);
  }
  const testing::Bytes zeros(info.values_bytes);
  const std::size_t unit = unit_bytes(info.dtype);
  std::vector<DenseRun> runs;
  for (std::size_t i = 0; i < head.entries.size(); ++i) {
    const std::size_t bytes = head.entries[i].count() * unit;
    runs.push_back({head.entries[i].tensor, head.first_units[i], std::span(zeros).first(bytes)});
  }
  testing::Bytes frame;
  DRIFTLESS_RETURN_IF_ERROR(encode_full_frame(info.context, layout, info.dtype, runs, frame));
  if (frame.size() != info.frame_bytes) std::abort();
  frame.resize(head.places.head_bytes);
  return frame;
}

void decode_head(const testing::Bytes& bytes, const WeightLayout& layout) {
  const Result<FrameHead> head = decode_frame_head(bytes, layout);
  if (!head.ok()) return;
  const Result<testing::Bytes> again = encode_again(*head, layout);
  if (!again.ok() || !std::equal(again->begin(), again->end(), bytes.begin())) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const WeightLayout layout = testing::golden_layout();
  const auto input = std::as_bytes(std::span(data, size));
  testing::Bytes front(input.begin(), input.end());
  decode_head(front, layout);
  if (size < kFrameHeaderBytes) return 0;
  const std::uint64_t hash = XXH3_64bits(front.data(), kFrameHeaderBytes - 8);
  std::memcpy(front.data() + kFrameHeaderBytes - 8, &hash, 8);
  decode_head(front, layout);
  return 0;
}
