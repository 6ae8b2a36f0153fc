// SPDX-License-Identifier: Apache-2.0
// ScaleJumps: the tensors with FP8 blocks of which many scales changed in a version. A jump of
// scales changes most codes below them, so that a dense version has its cause beside it, by name.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "plugin/publish/weight_store.h"

namespace driftless {

class ScaleJumps {
 public:
  // `above`: the share of a tensor's blocks here of which the scale changes; fewer than 8 blocks
  // are no jump.
  explicit ScaleJumps(double above) : above_(above) {}

  // `of_blocks` that this rank has of a tensor with codes. Adds up.
  void add(std::uint32_t tensor, std::uint64_t changed, std::uint64_t of_blocks);
  // Whether so many are a jump.
  [[nodiscard]] bool is_jump(std::uint64_t changed, std::uint64_t of_blocks) const;
  // Names the tensors that jumped; nothing if none did. `then`: what follows from it.
  [[nodiscard]] std::optional<std::string> note(const WeightLayout& layout, unsigned rank,
                                                std::string_view then) const;

 private:
  struct Blocks {
    std::uint64_t changed = 0, all = 0;
  };
  double above_;
  std::map<std::uint32_t, Blocks> of_;
};

// Adds what changes in the scales of a batch, which a snapshot is about to be compared with. What
// does not lie in host memory is left out.
void add_scale_changes(const WeightStore& snapshot, std::span<const PairedTensor> batch,
                       ScaleJumps& jumps);

}  // namespace driftless
