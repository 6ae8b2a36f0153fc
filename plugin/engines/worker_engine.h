// WorkerEngine: an engine with our receiver in its workers, as worker_session.cpp drives it. What
// was paused is resumed, what is stale is cleared, until it succeeded: the engine remembers.
// Internal to agent/.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/status.h"
#include "plugin/engines/engine_link.h"
#include "plugin/engines/rank_replies.h"

namespace driftless {

class WorkerEngine {
 public:
  virtual ~WorkerEngine() = default;
  [[nodiscard]] virtual const EngineLink& link() const = 0;

  // Calls driftless_<phase> on every rank; one reply of each, to this call. `must`: also while
  // everything ends.
  [[nodiscard]] virtual Result<std::vector<RankReply>> ask(std::string_view phase, Json arguments,
                                                           bool must) = 0;
  // After a failure it is resumed.
  [[nodiscard]] virtual Status pause() = 0;
  // Commits on every rank, within the engine's own session where it has one. What came of it is
  // asked for by "status".
  [[nodiscard]] virtual Status write(std::uint64_t version) = 0;
  // The ranks are at this version: the session ends, and the engine serves it from now on.
  [[nodiscard]] virtual Status finish(std::uint64_t version) = 0;
  // Clears the caches and resumes, as far as there is need. Tried several times.
  [[nodiscard]] virtual Status settle() = 0;
  // The engine says that it serves this version. Ok where it cannot say.
  [[nodiscard]] virtual Status confirm(std::uint64_t version) = 0;
};

[[nodiscard]] std::unique_ptr<WorkerEngine> make_vllm_engine(EngineLink link);
// `loader`: as the server's --custom-weight-loader names it. `timeout`: for the ranks' answers,
// which come by files in a directory below `shm_dir` (of the host_shm road; the engine knows it,
// too).
[[nodiscard]] Result<std::unique_ptr<WorkerEngine>> make_sglang_engine(
    EngineLink link, std::string loader, std::chrono::milliseconds timeout,
    const std::string& shm_dir);

}  // namespace driftless
