// SPDX-License-Identifier: Apache-2.0
#include "plugin/targets/masked_write.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include "core/parallel.h"
#include "kernels/host_kernels.h"

namespace driftless {
namespace {

constexpr std::uint32_t kMaskedBlockUnits = 1U << 16;

// Per thread: a block of sentinels to compare with, and scratch for the differences.
struct Scratch {
  std::vector<std::byte> sentinels, values;
  std::vector<std::uint32_t> offsets;

  Scratch(std::uint64_t sentinel, unsigned unit)
      : sentinels(std::size_t{kMaskedBlockUnits} * unit),
        values((std::size_t{kMaskedBlockUnits} + kDiffSlackUnits) * unit),
        offsets(kMaskedBlockUnits + kDiffSlackUnits) {
    for (std::size_t at = 0; at < sentinels.size(); at += unit) {
      std::memcpy(sentinels.data() + at, &sentinel, unit);
    }
  }
};

}  // namespace

Result<MaskedWrite> MaskedWrite::make(const WeightMap& into, const MaskedSource& source,
                                      unsigned threads) {
  const StridedMap& map = into.map;
  const unsigned unit = source_bytes(into.cast, into.unit_bytes);
  const std::uint64_t span = map.source_end - map.source_offset;
  const std::uint64_t blocks = (span + kMaskedBlockUnits - 1) / kMaskedBlockUnits;
  threads = static_cast<unsigned>(std::clamp<std::uint64_t>(blocks / 4, 1, std::max(1U, threads)));
  MaskedWrite write;
  write.into_ = into;
  write.blocks_.resize(blocks);
  std::vector<std::unique_ptr<Scratch>> scratches(threads);
  const HostKernels& kernels = host_kernels();
  return write.done(parallel_for(blocks, threads, [&](std::size_t i, unsigned worker) {
    if (!scratches[worker]) scratches[worker] = std::make_unique<Scratch>(source.sentinel, unit);
    Scratch& scratch = *scratches[worker];
    Block& block = write.blocks_[i];
    block.origin = map.source_offset + i * kMaskedBlockUnits;
    const auto units = static_cast<std::uint32_t>(
        std::min<std::uint64_t>(kMaskedBlockUnits, map.source_end - block.origin));
    const std::uint32_t count =
        kernels.diff(scratch.sentinels.data(), source.data + block.origin * unit, units, unit,
                     scratch.offsets.data(), scratch.values.data(), nullptr);
    block.offsets.assign(scratch.offsets.begin(), scratch.offsets.begin() + count);
    write.exchange(block, scratch.values.data());
    return Status();
  }));
}

Result<MaskedWrite> MaskedWrite::make(const WeightMap& into, std::span<const DeltaPiece> pieces,
                                      unsigned threads) {
  MaskedWrite write;
  write.into_ = into;
  write.blocks_.resize(pieces.size());
  threads =
      static_cast<unsigned>(std::clamp<std::uint64_t>(pieces.size() / 4, 1, std::max(1U, threads)));
  return write.done(parallel_for(pieces.size(), threads, [&](std::size_t i, unsigned) {
    const ChangePart part = part_of(pieces[i], into);
    Block& block = write.blocks_[i];
    block.origin = pieces[i].origin;
    block.offsets.assign(part.offsets(), part.offsets() + part.count);
    write.exchange(block, part.values());
    return Status();
  }));
}

Result<MaskedWrite> MaskedWrite::done(Status written) {
  if (written.ok()) return std::move(*this);
  undo();
  return written;
}

void MaskedWrite::exchange(Block& block, const std::byte* values) const {
  const HostKernels& kernels = host_kernels();
  block.old_values.resize(block.offsets.size() * into_.unit_bytes);
  kernels.gather_strided(into_.map, into_.data, into_.unit_bytes, block.origin,
                         block.offsets.data(), block.offsets.size(), block.old_values.data());
  kernels.scatter_strided(into_.map, into_.data, into_.unit_bytes, block.origin,
                          block.offsets.data(), block.offsets.size(), values, into_.cast);
}

void MaskedWrite::undo() {
  for (const Block& block : blocks_) {
    if (block.old_values.size() != block.offsets.size() * into_.unit_bytes) continue;  // not begun
    host_kernels().scatter_strided(into_.map, into_.data, into_.unit_bytes, block.origin,
                                   block.offsets.data(), block.offsets.size(),
                                   block.old_values.data(), ValueCast::kNone);
  }
  blocks_.clear();
}

}  // namespace driftless
