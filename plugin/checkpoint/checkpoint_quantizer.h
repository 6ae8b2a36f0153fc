// SPDX-License-Identifier: Apache-2.0
// A bfloat16 checkpoint becomes one with FP8 blocks, or with groups in INT4
// (docs/operate/quantized.md).
#pragma once

#include "core/quantize_rule.h"
#include "plugin/targets/version_stager.h"

namespace driftless {

struct QuantizeOptions {
  std::string checkpoint;                     // a directory
  std::string out;                            // is not there yet
  QuantizeRule rule = QuantizeRule::kLinear;  // of FP8 blocks
  unsigned int4_group = 0;                    // weights of a group in INT4; 0: FP8 blocks
  // Patterns of the shell, of tensors' names. `only`: these, instead of the default choice. `skip`:
  // none of these.
  std::vector<std::string> only, skip;
  std::uint64_t shard_bytes = std::uint64_t{5'000'000'000};
  unsigned threads = 1;
  Progress progress;  // may be empty; counts bytes of the weights read
};

struct QuantizeReport {
  std::uint64_t quantized = 0, kept = 0;            // tensors
  std::uint64_t bytes_before = 0, bytes_after = 0;  // of all tensors
  double seconds = 0;
  std::vector<std::string> notes;  // other files that were left out
};

// Whether a tensor's name is one that FP8 checkpoints quantize: not embeddings, norms, the output,
// routers and what else they keep.
[[nodiscard]] bool quantized_by_default(const std::string& name);

// Writes config.json with the quantization_config, and copies the other files. `out` appears whole
// or not at all. Memory: a few rows of blocks, whatever the checkpoint's size.
[[nodiscard]] Result<QuantizeReport> quantize_checkpoint(FileSystem& fs,
                                                         const QuantizeOptions& options);

}  // namespace driftless
