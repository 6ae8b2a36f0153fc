// SPDX-License-Identifier: Apache-2.0
// A checkpoint and its successors as RL makes them, out of nothing: `driftless synth`.
//
// DIR/step_000000/ ... step_{K:06d}/, each a Hugging Face checkpoint of a Qwen3 in bf16, rounded
// from fp32 masters that take small heavy-tailed steps. The bytes depend on params, steps, lr, seed
// and shard_bytes only: not on the number of threads, nor on the processor.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/file_system.h"
#include "core/status.h"

namespace driftless {

// All steps are written side by side, so each costs an open file and its buffer.
inline constexpr unsigned kMaxSynthSteps = 256;

struct SynthOptions {
  std::string out;  // made if missing, parents too
  std::uint64_t params = 250'000'000;
  unsigned steps = 3;
  double lr = 1e-6;
  std::uint64_t seed = 0;
  std::uint64_t shard_bytes = std::uint64_t{2} << 30;
  unsigned threads = 0;  // 0: default_threads()
  // Bytes so far and in all; one call at a time, from any thread.
  std::function<void(std::uint64_t done, std::uint64_t total)> progress;
};

struct SynthReport {
  std::uint64_t params = 0;          // those the model really has
  std::uint64_t bytes_per_step = 0;  // of tensors
  std::vector<double> density;       // of step k + 1: the share of elements whose bits changed
  std::vector<std::string> directories;
};

// kAlreadyExists where `out` exists and is not an empty directory. A step's directory has its name
// once it is complete and synced; a failure removes all that was made.
[[nodiscard]] Result<SynthReport> synthesize(FileSystem& fs, const SynthOptions& options);

}  // namespace driftless
