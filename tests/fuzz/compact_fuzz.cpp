// SPDX-License-Identifier: Apache-2.0
// Input: a frame of `compact`, for the weights of the golden one (support/compact_case.h). With all
// hashes made right it is decoded down to the changes, by every kernel that this processor has:
// they must agree, and what they accept must be what encoding gives again.
#include <cstdint>
#include <cstdlib>

#include "support/compact_case.h"
#include "support/frame_reseal.h"

namespace {

using namespace driftless;

constexpr std::uint64_t kMaxCompactBody = 1 << 22;

void decode_block(const testing::CompactCase::Block& weights, const CompactTable& table,
                  const CompactBlock& block, const CompactIndex& index) {
  const std::uint64_t units = weights.units();
  CompactChanges expected, changes;
  const auto decode = [&](const HostKernels& kernels, CompactChanges& out) {
    return decode_compact(kernels, table, weights.before.data(), units, index.tiles, block.tiles,
                          out);
  };
  const Status first = decode(all_host_kernels().front(), expected);
  for (const HostKernels& kernels : all_host_kernels()) {
    const Status status = decode(kernels, changes);
    if (status.ok() != first.ok()) std::abort();
    if (!status.ok()) continue;
    if (changes.offsets != expected.offsets || changes.values != expected.values) std::abort();
    CompactStreams again;
    const DeltaView delta{block.tensor, 2, 0, changes.offsets, changes.values.data()};
    if (!encode_compact(kernels, table, delta, weights.before.data(), units, again).ok()) {
      std::abort();
    }
    if (again.tiles != index.tiles || !std::equal(again.bytes.begin(), again.bytes.end(),
                                                  block.tiles.begin(), block.tiles.end())) {
      std::abort();
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const testing::CompactCase weights;
  const auto input = std::as_bytes(std::span(data, size));
  testing::Bytes bytes(input.begin(), input.end());
  testing::reseal(bytes);
  const Result<Frame> frame = Frame::decode(bytes, weights.layout, kMaxCompactBody);
  if (!frame.ok()) return 0;
  for (const CompactBlock& block : frame->compact_blocks()) {
    const Result<CompactIndex> index = Frame::read_index(weights.layout, block);
    if (!index.ok()) continue;
    for (const auto& each : weights.blocks) {
      if (each.tensor != block.tensor || each.units() != block.units(weights.layout)) continue;
      decode_block(each, frame->compact_tables()[block.table], block, *index);
    }
  }
  return 0;
}
