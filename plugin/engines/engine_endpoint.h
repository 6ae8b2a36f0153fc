// SPDX-License-Identifier: Apache-2.0
// EngineEndpoint: an engine of the configuration (`engines`), and how it is brought to a version.
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
  kUpdateFromDisk,  // POST /update_weights_from_disk: a receiver has patched the checkpoint already
  kUpdateFlush,     // POST /update_weights_from_disk with the flush files of each version
};

// The layout of the files that it loads. Here, since job/ asks, which takes nothing of engines/.
[[nodiscard]] constexpr DirectoryLayout layout_read_by(EngineAction action) {
  return action == EngineAction::kUpdateFlush ? DirectoryLayout::kFlush : DirectoryLayout::kHfDelta;
}

// Exactly one of `kind` and `action` is set.
struct EngineEndpoint {
  std::string url;                       // http://host:port or https://...; paths are appended
  std::optional<EngineKind> kind{};      // an agent drives it
  std::optional<EngineAction> action{};  // the trainer tells it to load files
  std::string local_checkpoint_dir{};    // as the engine sees it; not with kind or kUpdateFlush
  std::string token_file{};              // empty, or it holds a bearer token
  std::string token{};                   // the bearer token; empty: none
};

// Calls to an engine, whoever makes them.
struct EngineCalls {
  std::chrono::milliseconds timeout{120'000};  // of one call
  unsigned retries = 3;                        // further tries: of a told engine's call, of an
                                               // update by an agent
  std::chrono::milliseconds retry_wait{500};   // before the first of them; then twice as long
};

// Reads the token file. kInvalidArgument, naming the url, if it cannot be called, or if the token
// fits no header. Before an EngineLink is made of it.
[[nodiscard]] Status prepare_endpoint(EngineEndpoint& engine);

}  // namespace driftless
