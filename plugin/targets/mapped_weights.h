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
    bool external = false;    // the writer writes it
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
  Shares no_shares;                        // sums->shares with digests of zero
  std::shared_ptr<const WeightSums> sums;  // null: not known yet
  std::optional<std::uint32_t> rank;
  std::shared_ptr<ExternalWriter> writer;
  std::shared_ptr<WeightMemory> memory;
  std::string only_rule;  // MappedParts::only_rule
  TargetState state;
  ProofRule proof;
  bool proven = false;      // every tensor is complete; none is external or refused
  bool summed = false;      // the state's digest is computed from the complete tensors' bits
  bool contiguous = false;  // all held tensors are; none is external or refused
  unsigned threads = 1;
  std::atomic<bool> replaced = false;  // the target uses other weights now

  // Checks the parts, and sets the members that follow from them.
  [[nodiscard]] Status fill(MappedParts parts);
  // kInvalidArgument, naming the tensor, if one is held in part, converted, by the writer or
  // refused.
  [[nodiscard]] Status check_summed() const;
  // Reads the weights and sets `sums` and, if `summed`, the state's digest.
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

// The blocks of a version that these weights need: for complete and external tensors all blocks,
// for others those with units that a map has. Null if every block is needed.
[[nodiscard]] std::shared_ptr<const TargetNeeds> needs_of(
    const std::shared_ptr<const MappedWeights>& weights);

// Stages `versions` (adjoining deltas, or one full version) for these weights. With `in_place`
// their memory decodes the buckets. `ahead`: the work that was done while parts arrived; may be
// null.
[[nodiscard]] Result<std::unique_ptr<StagedChange>> stage_update(
    std::shared_ptr<MappedWeights> weights, std::vector<VersionSource> versions, bool in_place,
    StageAhead* ahead);

}  // namespace driftless
