// SPDX-License-Identifier: Apache-2.0
// Quantizes a bfloat16 checkpoint to FP8 blocks, or to INT4 groups (docs/operate/quantized.md).
#pragma once

#include "core/quantize_rule.h"
#include "plugin/targets/version_stager.h"

namespace driftless {

struct QuantizeOptions {
  std::string checkpoint;                     // a directory
  std::string out;                            // must not exist yet
  QuantizeRule rule = QuantizeRule::kLinear;  // for FP8 blocks
  unsigned int4_group = 0;                    // weights per INT4 group; 0: FP8 blocks
  // Shell patterns of tensor names. `only`: quantize these, in place of the default choice. `skip`:
  // never quantize these.
  std::vector<std::string> only, skip;
  std::uint64_t shard_bytes = std::uint64_t{5'000'000'000};
  unsigned threads = 1;
  Progress progress;  // may be empty; counts bytes of the weights read
};

struct QuantizeReport {
  std::uint64_t quantized = 0, kept = 0;            // tensors
  std::uint64_t bytes_before = 0, bytes_after = 0;  // of all tensors
  double seconds = 0;
  std::vector<std::string> notes;  // other files that were not copied
};

// Whether FP8 checkpoints usually quantize a tensor of this name: they do not quantize embeddings,
// norms, the output layer, routers and the like.
[[nodiscard]] bool quantized_by_default(const std::string& name);

// Quantizes the weights, writes config.json with the quantization_config, and copies the other
// files. `out` appears whole or not at all. Memory: codes of 64 MiB of weights (or of a larger row
// of blocks), and the scales of one tensor.
[[nodiscard]] Result<QuantizeReport> quantize_checkpoint(FileSystem& fs,
                                                         const QuantizeOptions& options);

}  // namespace driftless
