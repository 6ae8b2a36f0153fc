// SPDX-License-Identifier: Apache-2.0
// Input: a frame of `compact`, for the weights of one of the golden ones (support/compact_case.h
// and, if its header says F8_E4M3, support/compact_byte_case.h). With all hashes made right it is
// decoded down to the changes, by every kernel that this processor has: they must agree, and what
// they accept must be what encoding gives again. And it is opened as a version of one part and
// folded: what comes of that are changes within the tensors.
#include <cstdint>
#include <cstdlib>

#include "plugin/targets/version_fold.h"
#include "support/compact_byte_case.h"
#include "support/frame_reseal.h"

namespace {

using namespace driftless;

constexpr std::uint64_t kMaxCompactBody = 1 << 22;

void decode_block(const testing::Bytes& before, unsigned width, const CompactTable& table,
                  const CompactBlock& block, const CompactIndex& index) {
  const std::uint64_t units = before.size() / width;
  CompactChanges expected, changes;
  const auto decode = [&](const HostKernels& kernels, CompactChanges& out) {
    return decode_compact(kernels, table, before.data(), units, index.tiles, block.tiles, out);
  };
  const Status first = decode(all_host_kernels().front(), expected);
  for (const HostKernels& kernels : all_host_kernels()) {
    const Status status = decode(kernels, changes);
    if (status.ok() != first.ok()) std::abort();
    if (!status.ok()) continue;
    if (changes.offsets != expected.offsets || changes.values != expected.values) std::abort();
    CompactStreams again;
    const DeltaView delta{block.tensor, width, 0, changes.offsets, changes.values.data()};
    if (!encode_compact(kernels, table, delta, before.data(), units, again).ok()) {
      std::abort();
    }
    if (again.tiles != index.tiles || !std::equal(again.bytes.begin(), again.bytes.end(),
                                                  block.tiles.begin(), block.tiles.end())) {
      std::abort();
    }
  }
}

void fold_version(const WeightLayout& layout, testing::Bytes frame) {
  if (frame.size() < kFrameHeaderBytes) return;
  std::memset(frame.data() + 92, 0, 4);  // the version's first frame
  testing::reseal(frame);
  const Result<FrameInfo> info = read_frame_header(frame);
  if (!info.ok()) return;
  const FrameContext& context = info->context;
  VersionDirectory version;
  version.version = context.id.version;
  version.base_version = context.base_version;
  version.directory_layout = DirectoryLayout::kFrames;
  version.encoding = Encoding::kCompact;
  version.payload_files = {frame_file_name(context.rank, 0)};
  std::vector<MappedFile> parts;
  parts.emplace_back(version.payload_files[0], nullptr, std::span<const std::byte>(frame));
  std::vector<VersionSource> chain;
  Result<VersionSource> source =
      VersionSource::open(posix_file_system(), version, std::move(parts), {}, layout, {}, 1);
  if (!source.ok()) return;
  chain.push_back(std::move(*source));
  const OldUnits old_units = [](std::uint32_t tensor, std::uint64_t first, std::uint64_t count,
                                std::byte* scratch) -> Result<const std::byte*> {
    for (std::uint64_t i = 0; i < count; ++i) {
      const std::uint16_t unit = testing::compact_old(tensor, first + i);
      std::memcpy(scratch + 2 * i, &unit, 2);
    }
    return static_cast<const std::byte*>(scratch);
  };
  constexpr std::uint32_t kTensors[] = {0, 1};
  const auto folded = fold_chain(layout, chain, old_units, {kTensors, nullptr, 1});
  if (!folded.ok()) return;
  for (const auto& [tensor, changes] : *folded) {
    const auto& positions = changes.positions;
    if (std::adjacent_find(positions.begin(), positions.end(), std::greater_equal<>()) !=
            positions.end() ||
        (!positions.empty() && positions.back() >= layout[tensor].units()) ||
        changes.values.size() != 2 * positions.size()) {
      std::abort();
    }
  }
}

void decode_codes(testing::Bytes bytes) {
  static const testing::CompactByteCase codes;
  testing::reseal(bytes);
  const Result<Frame> frame = Frame::decode(bytes, codes.layout, kMaxCompactBody);
  if (!frame.ok()) return;
  for (const CompactBlock& block : frame->compact_blocks()) {
    const Result<CompactIndex> index = Frame::read_index(codes.layout, block);
    if (!index.ok() || block.units(codes.layout) != codes.before.size()) continue;
    decode_block(codes.before, 1, frame->compact_tables()[block.table], block, *index);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const testing::CompactCase weights;
  const auto input = std::as_bytes(std::span(data, size));
  testing::Bytes bytes(input.begin(), input.end());
  constexpr std::size_t kDTypeAt = 11;  // in a frame's header
  if (bytes.size() > kDTypeAt && bytes[kDTypeAt] == static_cast<std::byte>(DType::kF8E4M3)) {
    decode_codes(std::move(bytes));
    return 0;
  }
  fold_version(weights.layout, bytes);
  testing::reseal(bytes);
  const Result<Frame> frame = Frame::decode(bytes, weights.layout, kMaxCompactBody);
  if (!frame.ok()) return 0;
  for (const CompactBlock& block : frame->compact_blocks()) {
    const Result<CompactIndex> index = Frame::read_index(weights.layout, block);
    if (!index.ok()) continue;
    for (const auto& each : weights.blocks) {
      if (each.tensor != block.tensor || each.units() != block.units(weights.layout)) continue;
      decode_block(each.before, 2, frame->compact_tables()[block.table], block, *index);
    }
  }
  return 0;
}
