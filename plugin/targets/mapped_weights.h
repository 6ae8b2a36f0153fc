// SPDX-License-Identifier: Apache-2.0
// What a mapped target and the updates staged for it share.
#pragma once

#include <atomic>

#include "plugin/targets/mapped_target.h"

namespace driftless {

class StageAhead;  // stage_ahead.h

// What the weights add up to.
struct WeightSums {
  std::vector<Digest> maps;  // of what each map holds; zero of one that cannot be read back
  Shares shares;             // that follow from them
};

struct MappedWeights {
  struct Tensor {
    std::uint32_t first_map = 0, maps = 0;
    bool external = false;
    bool complete = false;    // the counted maps have every unit once
    bool contiguous = false;  // its one map is plain, and has every unit
    bool converted = false;   // a map of it converts
    std::string why_refused;  // empty: it is not
    std::size_t share = 0;    // its number among the shares, if it has one
    DigestTensorKey key;
  };
  WeightLayout layout;
  std::vector<Tensor> tensors;
  std::vector<WeightMap> maps;             // by tensor
  std::vector<bool> counted;               // per map: its units are the tensor's, none twice
  std::vector<bool> in_share;              // per map: its units are counted in the tensor's share
  Shares no_shares;                        // units, regions and what is unproven; digests are zero
  std::shared_ptr<const WeightSums> sums;  // null: nobody has read the weights
  std::optional<std::uint32_t> rank;
  std::shared_ptr<ExternalWriter> writer;
  std::shared_ptr<WeightMemory> memory;
  std::string only_rule;  // as MappedParts
  TargetState state;
  ProofRule proof;
  bool proven = false;
  bool summed = false;      // the state's digest is of the complete tensors' own bits
  bool contiguous = false;  // all that is held is contiguous tensors
  unsigned threads = 1;
  std::atomic<bool> replaced = false;  // others are in their place (MappedTarget::replace())

  // Checks the parts, and finds out what they hold.
  [[nodiscard]] Status fill(MappedParts parts);
  // Every tensor that is held can be summed.
  [[nodiscard]] Status check_summed() const;
  // Reads the weights: what they add up to, and if that is the state's digest, the state's.
  [[nodiscard]] Status sum_state();

  // All, or those that hold its own units.
  [[nodiscard]] std::vector<const WeightMap*> maps_of(std::uint32_t tensor,
                                                      bool counted_only) const;
  // Of a contiguous tensor that is held.
  [[nodiscard]] const WeightMap& map_of(std::uint32_t tensor) const {
    return maps[tensors[tensor].first_map];
  }
  [[nodiscard]] bool maps_any(std::uint32_t tensor) const { return tensors[tensor].maps > 0; }
};

// What the weights need of a version: the blocks that their maps meet. Null if that is everything.
[[nodiscard]] std::shared_ptr<const TargetNeeds> needs_of(
    const std::shared_ptr<const MappedWeights>& weights);

// `versions`, adjoining deltas or one full version, made ready. The update owns the states before
// and after, the proof between them, the commit (the writer first; then compare and write) and the
// way back. With `in_place` buckets are applied by the memory, where they lie. `ahead`: what was
// done of it before; null: nothing.
[[nodiscard]] Result<std::unique_ptr<StagedChange>> stage_update(
    std::shared_ptr<MappedWeights> weights, std::vector<VersionSource> versions, bool in_place,
    StageAhead* ahead);

}  // namespace driftless
