// SPDX-License-Identifier: Apache-2.0
// The state that a mapped target shares with the updates staged for it.
#pragma once

#include <atomic>

#include "plugin/targets/mapped_target.h"

namespace driftless {

class StageAhead;  // stage_ahead.h

// Digests of the weights.
struct WeightSums {
  std::vector<Digest> maps;  // of what each map holds; zero if it cannot be read back
  Shares shares;             // computed from `maps`
};

struct MappedWeights {
  struct Tensor {
    std::uint32_t first_map = 0, maps = 0;
    bool external = false;
    bool complete = false;    // the counted maps have every unit exactly once
    bool contiguous = false;  // its only map is plain and has every unit
    bool converted = false;   // one of its maps converts
    std::string why_refused;  // empty: the tensor is not refused
    std::size_t share = 0;    // index among the shares, if it has one
    DigestTensorKey key;
  };
  WeightLayout layout;
  std::vector<Tensor> tensors;
  std::vector<WeightMap> maps;             // by tensor
  std::vector<bool> counted;               // per map: one of those that make its tensor `complete`
  std::vector<bool> in_share;              // per map: its units count in the tensor's share
  Shares no_shares;                        // digests are zero; the rest as in sums->shares
  std::shared_ptr<const WeightSums> sums;  // null: the weights were not read
  std::optional<std::uint32_t> rank;
  std::shared_ptr<ExternalWriter> writer;
  std::shared_ptr<WeightMemory> memory;
  std::string only_rule;  // MappedParts::only_rule
  TargetState state;
  ProofRule proof;
  bool proven = false;
  bool summed = false;      // the state's digest comes from the complete tensors' bits
  bool contiguous = false;  // every tensor that is held is contiguous
  unsigned threads = 1;
  std::atomic<bool> replaced = false;  // other weights took their place (MappedTarget::replace())

  // Checks the parts, and derives the members above from them.
  [[nodiscard]] Status fill(MappedParts parts);
  // Ok if every tensor that is held can be summed.
  [[nodiscard]] Status check_summed() const;
  // Reads the weights and sums them; also computes the state's digest from them, if it is taken
  // from the weights.
  [[nodiscard]] Status sum_state();

  // All maps of the tensor, or only the counted ones.
  [[nodiscard]] std::vector<const WeightMap*> maps_of(std::uint32_t tensor,
                                                      bool counted_only) const;
  // The only map of a contiguous tensor that is held.
  [[nodiscard]] const WeightMap& map_of(std::uint32_t tensor) const {
    return maps[tensors[tensor].first_map];
  }
  [[nodiscard]] bool maps_any(std::uint32_t tensor) const { return tensors[tensor].maps > 0; }
};

// The blocks of a version that the maps of these weights meet. Null if they need every block.
[[nodiscard]] std::shared_ptr<const TargetNeeds> needs_of(
    const std::shared_ptr<const MappedWeights>& weights);

// Prepares `versions`, adjoining deltas or one full version. The update owns the states before and
// after, the proof between them, the commit (the writer first; then compare and write) and the
// undo. With `in_place` the memory applies buckets where they lie. `ahead`: work that was done
// before all parts were there; null: none.
[[nodiscard]] Result<std::unique_ptr<StagedChange>> stage_update(
    std::shared_ptr<MappedWeights> weights, std::vector<VersionSource> versions, bool in_place,
    StageAhead* ahead);

}  // namespace driftless
