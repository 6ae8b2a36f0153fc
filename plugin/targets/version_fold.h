// SPDX-License-Identifier: Apache-2.0
// What versions change in tensors, decoded: positions and values, those of several versions folded
// into one. `compact` is decoded with the units that it was coded with: the weights as they are,
// and what the versions before it changed in them.
#pragma once

#include "plugin/targets/version_source.h"
#include "plugin/targets/weight_memory.h"

namespace driftless {

// One version's changes of a tensor, or those of several folded.
struct UnitChanges {
  std::vector<std::uint64_t> positions;  // in the tensor
  std::vector<std::byte> values;
};

// Calls use(delta) for every stretch of the pieces, whose positions must ascend within a block
// (kCorrupt). Positions of the stretches are the tensor's.
[[nodiscard]] Status walk_pieces(const WeightLayout& layout, std::uint32_t tensor,
                                 std::span<const BucketPiece> pieces,
                                 const std::function<void(const DeltaView&)>& use);

// Blocks lie between each other: brings their changes into the order of the tensor.
void sort_changes(UnitChanges& changes, unsigned width);
// Of two that are sorted; `later` wins where both change a unit.
[[nodiscard]] UnitChanges merge_changes(const UnitChanges& earlier, const UnitChanges& later,
                                        unsigned width);

// Units [first, first + count) of a tensor as they are in the weights: where they lie, or in
// `scratch`, which has room for them. Fails if they are not all here. Called from any thread.
using OldUnits = std::function<Result<const std::byte*>(std::uint32_t tensor, std::uint64_t first,
                                                        std::uint64_t count, std::byte* scratch)>;

// Blocks of `compact` that are decoded and proven already, by where their tiles lie.
using DecodedBlocks = std::map<const std::byte*, UnitChanges>;

struct FoldOptions {
  std::span<const std::uint32_t> tensors;  // that are wanted, ascending
  // Whether a block is: null if all are. Of the others the old units are not asked for.
  const TargetNeeds* needs = nullptr;
  unsigned threads = 1;
  // Decodes blocks of these tensors where the weights lie (WeightMemory::decode_compact()), but for
  // their maps, which it adds. Empty, or false: the host does, with the old units.
  std::function<Result<bool>(std::span<CompactUnits>, std::span<const std::uint32_t>)> there = {};
  // Of the chain's first version, with the weights as they are. What is used is taken out.
  DecodedBlocks* decoded = nullptr;
};

// The changes of a chain whose versions are positional or `compact`, by tensor, sorted. Every block
// that was coded is proven: the number of changes of its tiles, the end of their streams, and the
// digest of what it changes. kMismatch, naming the tensor, if the old units are not the version's
// base, or the delta is damaged. Memory follows what changes, and a few megabytes for each thread.
[[nodiscard]] Result<std::map<std::uint32_t, UnitChanges>> fold_chain(
    const WeightLayout& layout, std::span<const VersionSource> chain, const OldUnits& old_units,
    const FoldOptions& options);

// The blocks of one frame of the version that follows the weights: all of them, or nothing. Proven
// like those of a chain.
[[nodiscard]] Status decode_frame(const WeightLayout& layout, const Frame& frame,
                                  const OldUnits& old_units, const FoldOptions& options,
                                  DecodedBlocks& decoded);

}  // namespace driftless
