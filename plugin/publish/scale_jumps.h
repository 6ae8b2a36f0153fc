// SPDX-License-Identifier: Apache-2.0
// ScaleJumps: finds tensors with FP8 blocks of which a version changes many scales. A changed scale
// changes most codes of its block and may make the version dense, so a note names these tensors.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "plugin/publish/weight_store.h"

namespace driftless {

class ScaleJumps {
 public:
  // A tensor is reported if more than the share `above` of this rank's blocks change their scale,
  // and at least 8 of them.
  explicit ScaleJumps(double above) : above_(above) {}

  // Adds blocks of a tensor with codes: of `of_blocks` blocks, `changed` changed their scale.
  void add(std::uint32_t tensor, std::uint64_t changed, std::uint64_t of_blocks);
  // Whether these counts are a jump.
  [[nodiscard]] bool is_jump(std::uint64_t changed, std::uint64_t of_blocks) const;
  // A note that names the tensors that jumped; nothing if none did. `then`: the consequence,
  // appended to the note.
  [[nodiscard]] std::optional<std::string> note(const WeightLayout& layout, unsigned rank,
                                                std::string_view then) const;

 private:
  struct Blocks {
    std::uint64_t changed = 0, all = 0;
  };
  double above_;
  std::map<std::uint32_t, Blocks> of_;
};

// Counts the scales of a batch that differ from a snapshot. Ignores tensors that do not lie in host
// memory.
void add_scale_changes(const WeightStore& snapshot, std::span<const PairedTensor> batch,
                       ScaleJumps& jumps);

}  // namespace driftless
