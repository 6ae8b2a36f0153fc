// SPDX-License-Identifier: Apache-2.0
// The settings of `driftless agent`.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace driftless {

// How versions get from the agent to the engines of its host.
enum class HandOver : unsigned char {
  kHostShm,     // to receivers inside the engines' workers, through shared memory
  kCheckpoint,  // into a checkpoint directory, which engines read again
};

enum class EngineKind : unsigned char { kVllm, kSglang };

struct AgentEngine {
  std::string url;
  EngineKind kind = EngineKind::kVllm;
  std::string token_file;  // empty, or it holds a bearer token
};

struct AgentOptions {
  HandOver hand_over = HandOver::kHostShm;
  std::string checkpoint_dir;  // of kCheckpoint; "{rank}" stands for the agent's number
  std::vector<AgentEngine> engines;
  unsigned workers = 0;  // receivers on host_shm that must be there at the end
  unsigned read_workers = 4;
  std::uint64_t read_bytes = std::uint64_t{1} << 30;
  std::chrono::milliseconds stage_timeout{60'000};  // of an engine's workers, for one version
  std::chrono::milliseconds call_timeout{120'000};  // of one call
  unsigned retries = 3;                             // of one update
  std::chrono::milliseconds retry_wait{500};        // before the first of them; then twice as long
  // The loader inside SGLang, as --custom-weight-loader names it.
  std::string sglang_loader = "driftless.engines.sglang.load";
};

}  // namespace driftless
