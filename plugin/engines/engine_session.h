// EngineSession: brings one engine to a version over HTTP, and confirms it. One for each kind of
// engine and way of handing over; engine_fleet.h runs them, each on a thread of its own.
//
// All of them: whatever happens, the engine is resumed if it was paused, also while everything ends
// (close()). The one exception: ranks that are known to hold different versions, and cannot be
// brought back to one, are left paused, because they would answer with half of each.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <shared_mutex>
#include <string>

#include "core/status.h"
#include "plugin/engines/engine_link.h"

namespace driftless {

struct EngineTimes {
  double stage_ms = 0, pause_ms = 0, apply_ms = 0, resume_ms = 0;
};

class EngineSession {
 public:
  virtual ~EngineSession() = default;
  // Brings the engine to `goal` or a later version; returns which. A failure leaves it at the
  // version that it had, or says that it did not. To be called again after a failure.
  [[nodiscard]] virtual Result<std::uint64_t> update(std::uint64_t goal, EngineTimes& times) = 0;
  // Resumes what is still paused.
  [[nodiscard]] virtual Status close() = 0;
};

class WorkerEngine;
// An engine with our receiver in its workers: they stage while it generates, and commit while it is
// paused. `source`: the name of what the workers follow ("host_shm:NAME"); `stage`: for their
// staging.
[[nodiscard]] std::unique_ptr<EngineSession> make_worker_session(
    std::unique_ptr<WorkerEngine> engine, std::string source, std::chrono::milliseconds stage);

// What engines that read files are given. The checkpoint is patched by whoever holds `lock`
// exclusively; who reads it holds it shared, by reading().
struct DiskVersions {
  std::shared_timed_mutex lock;
  std::atomic<bool> writer_waits{false};  // nobody begins to read
  std::string checkpoint;
  std::uint64_t version = 0;
  // The tensors that changed between `changed_from` and `version`, whole, as a directory; empty:
  // only the checkpoint has them.
  std::string changed;
  std::uint64_t changed_from = 0;

  // Lets a writer go first, so that an engine that is tried again and again does not keep the next
  // version from the others. kIncomplete where the link's stop comes before.
  [[nodiscard]] Result<std::shared_lock<std::shared_timed_mutex>> reading(const EngineLink& link);
};
// vLLM as it comes: its workers load the checkpoint again. `versions` outlives it.
[[nodiscard]] std::unique_ptr<EngineSession> make_vllm_disk_session(EngineLink link,
                                                                    DiskVersions& versions);
// SGLang as it comes: the changed tensors, or the whole checkpoint where it is not at the version
// before. `check`: that the model at this path has the checkpoint's tensors, in their shapes; asked
// before the first update, because another shape ends the server.
[[nodiscard]] std::unique_ptr<EngineSession> make_sglang_disk_session(
    EngineLink link, DiskVersions& versions, std::function<Status(const std::string&)> check);

}  // namespace driftless
