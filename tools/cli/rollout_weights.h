// SPDX-License-Identifier: Apache-2.0
// The weights of `driftless rollout`: in memory, in a checkpoint directory, or on a GPU.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "core/status.h"
#include "plugin/job/config.h"
#include "plugin/targets/weight_target.h"

namespace driftless::cli {

class RolloutWeights {
 public:
  virtual ~RolloutWeights() = default;
  [[nodiscard]] virtual WeightTarget& target() = 0;
  // Calls `use` with the bytes of every tensor, in the order of the layout; a tensor may come in
  // pieces.
  [[nodiscard]] virtual Status visit(
      const std::function<Status(std::span<const std::byte>)>& use) = 0;
};

// As receiver.target says. `base` (empty: none) is where they start; a checkpoint directory that is
// not there yet is made as a copy of it.
[[nodiscard]] Result<std::unique_ptr<RolloutWeights>> open_weights(const Config& config,
                                                                   unsigned rank,
                                                                   const std::string& base);

// Writes DIR/rollout_{rank:02d}/, a Hugging Face checkpoint with the base's config.json where there
// is one. It appears whole; kAlreadyExists where something is there.
[[nodiscard]] Status save_weights(RolloutWeights& weights, const std::string& directory,
                                  unsigned rank, const std::string& base);

}  // namespace driftless::cli
