// SPDX-License-Identifier: Apache-2.0
// The weights of `driftless rollout`: in memory, in a checkpoint directory, or on a GPU.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "core/status.h"
#include "plugin/job/config.h"
#include "plugin/targets/weight_target.h"

namespace driftless::cli {

struct RolloutWeights {
  std::unique_ptr<WeightTarget> target;
  // Calls `use` with the bytes of every tensor, in the order of the layout; a tensor may come in
  // pieces.
  using Use = std::function<Status(std::span<const std::byte>)>;
  std::function<Status(const Use& use)> visit;
};

// As receiver.target says. `base` (empty: none) is where they start; a checkpoint directory that is
// not there yet is made as a copy of it.
[[nodiscard]] Result<RolloutWeights> open_weights(const Config& config, unsigned rank,
                                                  const std::string& base);

// Writes DIR/rollout_{rank:02d}/, a Hugging Face checkpoint with the base's config.json if there
// is one. It appears whole; kAlreadyExists where something is there.
[[nodiscard]] Status save_weights(const RolloutWeights& weights, const std::string& directory,
                                  unsigned rank, const std::string& base);

}  // namespace driftless::cli
