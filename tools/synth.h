// SPDX-License-Identifier: Apache-2.0
// Makes a synthetic checkpoint and its successors, similar to those of RL training: `driftless
// synth`.
//
// Writes DIR/step_000000/ ... step_{K:06d}/, each a Hugging Face checkpoint of a Qwen3 in bf16,
// rounded from fp32 masters that take small heavy-tailed steps. The bytes depend only on params,
// steps, lr, seed and shard_bytes: not on the number of threads or the processor.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/file_system.h"
#include "core/status.h"

namespace driftless {

// All steps are written in parallel, so each needs an open file and a buffer.
inline constexpr unsigned kMaxSynthSteps = 256;

struct SynthOptions {
  std::string out;  // created if missing, with its parents
  std::uint64_t params = 250'000'000;
  unsigned steps = 3;
  double lr = 1e-6;
  std::uint64_t seed = 0;
  std::uint64_t shard_bytes = std::uint64_t{2} << 30;
  unsigned threads = 0;  // 0: default_threads()
  // Receives the bytes written so far and in total; one call at a time, from any thread.
  std::function<void(std::uint64_t done, std::uint64_t total)> progress;
};

struct SynthReport {
  std::uint64_t params = 0;          // the model's real number of parameters
  std::uint64_t bytes_per_step = 0;  // of tensors
  std::vector<double> density;       // of step k + 1: the fraction of elements whose bits changed
  std::vector<std::string> directories;
};

// kAlreadyExists if `out` exists and is not an empty directory. A step's directory gets its name
// once it is complete and synced; a failure removes everything that was made.
[[nodiscard]] Result<SynthReport> synthesize(FileSystem& fs, const SynthOptions& options);

}  // namespace driftless
