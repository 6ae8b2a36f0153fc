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
  // A tensor, and a function that passes its bytes to `use`, in one or more pieces.
  using Use = std::function<Status(std::span<const std::byte>)>;
  struct Tensor {
    TensorSpec spec;
    std::function<Status(const Use& use)> visit;
  };
  // Returns all tensors of a checkpoint: those that the run publishes, and the others that the base
  // stores.
  std::function<Result<std::vector<Tensor>>()> tensors;
  std::string directory;  // contains configuration and tokenizer; empty: unknown
};

// Opens the weights that receiver.target names. They start as `base` (empty: none). A missing
// checkpoint directory is created as a copy of `base`.
[[nodiscard]] Result<RolloutWeights> open_weights(const Config& config, unsigned rank,
                                                  const std::string& base);

// Writes DIR/rollout_{rank:02d}/ as a Hugging Face checkpoint. If there is a base, it includes the
// base's tensors that the run does not publish and the files beside its weights. The directory
// appears whole; kAlreadyExists if it exists. Returns notes on files that were left out.
[[nodiscard]] Result<std::vector<std::string>> save_weights(const RolloutWeights& weights,
                                                            const std::string& directory,
                                                            unsigned rank);

}  // namespace driftless::cli
