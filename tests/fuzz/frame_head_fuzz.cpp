// SPDX-License-Identifier: Apache-2.0
// Input: the front of a frame. It is decoded as it is, and once more with the header's hash made
// right. What is accepted must be the head that its content encodes to.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "formats/frame_head.h"
#include "support/golden_case.h"

namespace {

using namespace driftless;

Result<EncodedFrameHead> encode_again(const FrameHead& head, const WeightLayout& layout) {
  const FrameInfo& info = head.info;
  if (info.context.encoding == Encoding::kFull) {
    return encode_full_frame_head(info.context, layout, info.dtype, head.runs);
  }
  return encode_frame_head(info.context,
                           BucketShape(info.context.encoding, info.dtype, head.entries,
                                       info.positions_bytes, info.values_bytes));
}

void decode_head(const testing::Bytes& bytes, const WeightLayout& layout) {
  const Result<FrameHead> head = decode_frame_head(bytes, layout);
  if (!head.ok()) return;
  const Result<EncodedFrameHead> again = encode_again(*head, layout);
  if (!again.ok() || again->frame_bytes != head->info.frame_bytes) std::abort();
  if (!std::equal(again->bytes.begin(), again->bytes.end(), bytes.begin())) std::abort();
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
