// vLLM's own calls around an update, and what they leave to be done: an engine that was paused is
// resumed, a cache that is stale is cleared, until it succeeded.
#pragma once

#include <cstdint>

#include "core/status.h"
#include "plugin/engines/engine_link.h"

namespace driftless {

class VllmCalls {
 public:
  explicit VllmCalls(const EngineLink& link) : link_(&link) {}

  // Requests in flight are kept. After a failure it counts as paused, since nobody knows.
  [[nodiscard]] Status pause();
  // The session of an update; false: this server has none, and workers are written to directly. One
  // that nobody finished is finished first.
  [[nodiscard]] bool begin();
  [[nodiscard]] Status write(std::uint64_t version);
  [[nodiscard]] Status finish(std::uint64_t version);
  // Weights were written: what the caches hold is stale.
  void dirty() { dirty_ = true; }
  // Clears the caches and resumes, as far as there is need. Tried several times.
  [[nodiscard]] Status settle();
  // The server says that it serves this version; it is told where it says another. Ok where it
  // cannot say.
  [[nodiscard]] Status confirm(std::uint64_t version);

 private:
  const EngineLink* link_;
  // Before the first call nobody knows: an agent that was killed may have left it so.
  bool paused_ = true;
  bool dirty_ = true;
};

}  // namespace driftless
