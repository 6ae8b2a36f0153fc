// SPDX-License-Identifier: Apache-2.0
// Input: a frame. It is decoded as it is, and once more with all hashes recomputed, so that the
// checks behind them run. A plain frame that is accepted must be the one that its content encodes
// to.
#include <cstdint>
#include <cstdlib>

#include "support/frame_reseal.h"
#include "support/golden_case.h"

namespace {

using namespace driftless;

constexpr std::uint64_t kMaxBody = 1 << 22;

void decode(const testing::Bytes& bytes, const WeightLayout& layout) {
  const Result<Frame> frame = Frame::decode(bytes, layout, kMaxBody);
  if (!frame.ok()) return;
  testing::Bytes again;
  if (frame->dense()) {
    const auto& [context, dtype] = std::pair(frame->info().context, frame->info().dtype);
    if (!encode_full_frame(context, layout, dtype, frame->runs(), again).ok()) std::abort();
    if (again != bytes || !frame->bucket().entries.empty()) std::abort();
    return;
  }
  if (frame->compact()) {
    const auto& [context, dtype] = std::pair(frame->info().context, frame->info().dtype);
    const std::vector<CompactBlock> blocks = frame->compact_blocks();
    const auto tables = frame->compact_tables();
    if (!encode_compact_frame(context, layout, dtype, tables, blocks, again).ok()) std::abort();
    if (again != bytes || !frame->bucket().entries.empty()) std::abort();
    return;
  }
  if (!testing::decode_all(layout, frame->bucket()).ok()) return;
  if (!encode_frame(frame->info().context, frame->bucket(), again).ok()) std::abort();
  if (frame->info().context.encoding != Encoding::kDeltasZstd && again != bytes) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const WeightLayout layout = testing::golden_layout();
  const auto input = std::as_bytes(std::span(data, size));
  testing::Bytes frame(input.begin(), input.end());
  decode(frame, layout);
  if (size < kFrameHeaderBytes + kFrameTrailerBytes) return 0;
  testing::reseal(frame);
  decode(frame, layout);
  return 0;
}
