// SPDX-License-Identifier: Apache-2.0
// The weights of `driftless rollout`: in memory, in a checkpoint directory, or on a GPU.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/status.h"
#include "plugin/job/config.h"
#include "plugin/targets/weight_target.h"

namespace driftless::cli {

struct RolloutWeights {
  std::unique_ptr<WeightTarget> target;
  // A tensor, and a function that calls `use` with its bytes, in one or more pieces.
  using Use = std::function<Status(std::span<const std::byte>)>;
  struct Tensor {
    TensorSpec spec;
    std::function<Status(const Use& use)> visit;
  };
  // All that a checkpoint of them holds: what the run publishes, and what the base has beside it.
  std::function<Result<std::vector<Tensor>>()> tensors;
  std::string directory;  // with configuration and tokenizer; empty: none is known
};

// As receiver.target says. `base` (empty: none) is where they start; a checkpoint directory that is
// not there yet is made as a copy of it.
[[nodiscard]] Result<RolloutWeights> open_weights(const Config& config, unsigned rank,
                                                  const std::string& base);

// Writes DIR/rollout_{rank:02d}/, a Hugging Face checkpoint with the tensors of the base that the
// run does not publish and the files beside its weights, if there is a base. It appears whole;
// kAlreadyExists where something is there. Returns notes: files that were left out.
[[nodiscard]] Result<std::vector<std::string>> save_weights(const RolloutWeights& weights,
                                                            const std::string& directory,
                                                            unsigned rank);

}  // namespace driftless::cli
