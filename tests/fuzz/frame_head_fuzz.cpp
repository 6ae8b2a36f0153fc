// SPDX-License-Identifier: Apache-2.0
// Input: a frame. Its head is taken out of it and decoded, as it is, and once more with all hashes
// made right. What is accepted must be the head that its content encodes to; and a collector of
// every other block must end with these blocks, or refuse.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "support/frame_head.h"
#include "support/frame_reseal.h"
#include "support/golden_case.h"

namespace {

using namespace driftless;

constexpr std::uint64_t kMaxHeadBody = 1 << 22;

void check_table(const FrameHead& head, const testing::Bytes& bytes) {
  const FrameInfo& info = head.info;
  const Encoding encoding = info.context.encoding;
  if (encoding != Encoding::kIndices && encoding != Encoding::kDeltas) return;
  std::vector<Hash128> hashes;
  for (const FrameBlock& block : head.blocks) hashes.push_back(block.hash);
  const BucketShape shape{info.context.encoding, info.dtype, head.entries, info.positions_bytes,
                          info.values_bytes};
  const Result<FramePlan> plan = plan_frame(info.context, shape);
  const auto table = encode_frame_table(info.context, shape, hashes);
  if (!plan.ok() || !table.ok() || plan->frame_bytes != info.frame_bytes) std::abort();
  testing::Bytes again = plan->header;
  again.insert(again.end(), table->begin(), table->end());
  if (again != bytes) std::abort();
}

void collect(const testing::Bytes& head, const testing::Bytes& frame, const WeightLayout& layout) {
  std::size_t number = 0;
  Result<FrameCollector> collector = FrameCollector::open(
      head, layout, kMaxHeadBody, [&](const BucketEntry&) { return number++ % 2 == 0; });
  if (!collector.ok()) return;
  for (std::size_t i = 0; i < collector->ranges().size(); ++i) {
    const FrameRange& range = collector->ranges()[i];
    if (range.offset + range.size_bytes > frame.size()) std::abort();
    if (!collector->take(i, std::span(frame).subspan(range.offset, range.size_bytes)).ok()) return;
  }
  const Result<Frame> found = collector->finish(layout);
  if (!found.ok() || found->dense() || found->compact()) return;
  static_cast<void>(testing::decode_all(layout, found->bucket()));
}

void decode_head(const testing::Bytes& frame, const WeightLayout& layout) {
  const Result<FrameInfo> info = read_frame_header(frame);
  if (!info.ok() || info->frame_bytes != frame.size()) return;
  const testing::Bytes bytes = testing::frame_head_of(*info, frame);
  const Result<FrameHead> head = decode_frame_head(bytes, layout);
  if (!head.ok()) return;
  check_table(*head, bytes);
  collect(bytes, frame, layout);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const WeightLayout layout = testing::golden_layout();
  const auto input = std::as_bytes(std::span(data, size));
  testing::Bytes frame(input.begin(), input.end());
  decode_head(frame, layout);
  testing::reseal(frame);
  decode_head(frame, layout);
  return 0;
}
