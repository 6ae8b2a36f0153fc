// SPDX-License-Identifier: Apache-2.0
// EngineEndpoint: one engine of the configuration (`engines`), and how it receives a version.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "core/status.h"
#include "formats/manifest.h"

namespace driftless {

enum class EngineKind : unsigned char { kVllm, kSglang };
[[nodiscard]] std::string_view to_string(EngineKind kind);

enum class EngineAction : unsigned char {
  kPullWeights,     // POST /pull_weights, then POST /update_weights_from_disk
  kUpdateFromDisk,  // POST /update_weights_from_disk, after a receiver has patched the checkpoint
  kUpdateFlush,     // POST /update_weights_from_disk with the flush files of each version
};

// The road.layout that an engine with this action needs: the engine reads it, or the receiver that
// patches its checkpoint does.
[[nodiscard]] constexpr DirectoryLayout layout_read_by(EngineAction action) {
  return action == EngineAction::kUpdateFlush ? DirectoryLayout::kFlush : DirectoryLayout::kHfDelta;
}

// Exactly one of `kind` and `action` is set.
struct EngineEndpoint {
  std::string url;                       // http://host:port or https://...; paths are appended
  std::optional<EngineKind> kind{};      // an agent drives the engine
  std::optional<EngineAction> action{};  // the trainer asks the engine to load files
  std::string local_checkpoint_dir{};  // path as the engine sees it; not with kind or kUpdateFlush
  std::string token_file{};            // contains a bearer token; empty: none
  std::string token{};                 // the bearer token; empty: none
};

// Limits for the HTTP calls to an engine.
struct EngineCalls {
  std::chrono::milliseconds timeout{120'000};  // of one call
  // Retries of a failed call (engines with an action) or of a failed update (engines with an
  // agent).
  unsigned retries = 3;
  std::chrono::milliseconds retry_wait{500};  // before the first retry; doubles each time
};

// Reads the token file. kInvalidArgument, naming the url, if the url cannot be called or the token
// does not fit into a header. Call it before you create an EngineLink.
[[nodiscard]] Status prepare_endpoint(EngineEndpoint& engine);

}  // namespace driftless
