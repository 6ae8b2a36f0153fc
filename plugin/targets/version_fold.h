// SPDX-License-Identifier: Apache-2.0
// Decodes the changes that versions make to tensors, as positions and values, and folds several
// versions into one. `compact` is coded relative to the weights before the version, so decoding
// needs these: the present weights plus the changes of the chain's earlier versions.
#pragma once

#include "plugin/targets/version_source.h"
#include "plugin/targets/weight_memory.h"

namespace driftless {

// The changes of a tensor in one version, or in several folded.
struct UnitChanges {
  std::vector<std::uint64_t> positions;  // in the tensor
  std::vector<std::byte> values;
};

// Calls use(delta) for every stretch of the pieces; its positions are those in the tensor. kCorrupt
// if the positions within a block do not ascend.
[[nodiscard]] Status walk_pieces(const WeightLayout& layout, std::uint32_t tensor,
                                 std::span<const BucketPiece> pieces,
                                 const std::function<void(const DeltaView&)>& use);

// Sorts changes by position, because the blocks of a tensor may interleave.
void sort_changes(UnitChanges& changes, unsigned width);
// Merges two sorted lists; `later` wins if both change a unit.
[[nodiscard]] UnitChanges merge_changes(const UnitChanges& earlier, const UnitChanges& later,
                                        unsigned width);

// Returns units [first, first + count) of a tensor in the present weights: where they lie, or
// copied into `scratch`, which has room for them. Fails if they are not all here. Called from any
// thread.
using OldUnits = std::function<Result<const std::byte*>(std::uint32_t tensor, std::uint64_t first,
                                                        std::uint64_t count, std::byte* scratch)>;

// Blocks of `compact` that are already decoded and proven, by the address of their tiles.
using DecodedBlocks = std::map<const std::byte*, UnitChanges>;

struct FoldOptions {
  std::span<const std::uint32_t> tensors;  // the wanted tensors, ascending
  // Which blocks are wanted; null: all. The old units of other blocks are not requested.
  const TargetNeeds* needs = nullptr;
  unsigned threads = 1;
  // there(blocks, tensors), with blocks[i] of tensors[i]: sets the blocks' maps, and decodes them
  // in the memory of the weights (WeightMemory::decode_compact()). If it is empty or returns false,
  // the host decodes the blocks with the old units.
  std::function<Result<bool>(std::span<CompactUnits>, std::span<const std::uint32_t>)> there = {};
  // Blocks of the chain's first version, decoded with the present weights. Used blocks are removed.
  DecodedBlocks* decoded = nullptr;
};

// The changes of a chain whose versions are positional or `compact`, by tensor, sorted. Each coded
// block is proven by the number of its changes, the end of its streams and the digest of its
// changes. kMismatch, naming the tensor, if the old units are not the version's base or the delta
// is damaged. Memory: O(changes), and a few megabytes for each thread.
[[nodiscard]] Result<std::map<std::uint32_t, UnitChanges>> fold_chain(
    const WeightLayout& layout, std::span<const VersionSource> chain, const OldUnits& old_units,
    const FoldOptions& options);

// Decodes the blocks of one frame of the version that follows the weights, and proves them as in a
// chain: all of them, or none.
[[nodiscard]] Status decode_frame(const WeightLayout& layout, const Frame& frame,
                                  const OldUnits& old_units, const FoldOptions& options,
                                  DecodedBlocks& decoded);

}  // namespace driftless
