// SPDX-License-Identifier: Apache-2.0
// EngineSession: moves one engine to a version and confirms it. EngineFleet (engine_fleet.h) runs
// one session per engine, each on its own thread. There is one implementation: a driver
// (engine_driver.h) and the transport that carries its calls.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "core/digest.h"
#include "core/hash128.h"
#include "core/status.h"
#include "plugin/engines/engine_driver.h"
#include "plugin/engines/engine_transport.h"

namespace driftless {

class EngineSession {
 public:
  virtual ~EngineSession() = default;
  // Moves the engine to `goal` or a later version; if its ranks get there only in steps, to a
  // version on the way. Returns the version reached. After a failure the engine is at its old
  // version, or the error says that it is not. Call it again after a failure.
  [[nodiscard]] virtual Result<std::uint64_t> update(std::uint64_t goal, CommitTimes& times) = 0;
  // Ok if the engine serves `version`. kMismatch if it serves something else: it was restarted, or
  // another agent has updated it, perhaps to a version with the same number. kIo or
  // kDeadlineExceeded if it does not answer. With version 0, only whether it answers.
  [[nodiscard]] virtual Status check(std::uint64_t /*version*/) { return {}; }
  // Whether the last update, which failed, found that the engine no longer holds the result of the
  // update before it.
  [[nodiscard]] virtual bool lost() const { return false; }
  // Resumes the engine if it is still paused and its ranks hold one version.
  [[nodiscard]] virtual Status close() = 0;
};

// The known digests of a run's versions. Any thread.
class VersionDigests {
 public:
  void note(std::uint64_t version, const Digest& digest);
  [[nodiscard]] std::optional<Digest> find(std::uint64_t version) const;

 private:
  mutable std::mutex mutex_;
  std::map<std::uint64_t, Digest> digests_;
};

struct EngineSessionOptions {
  std::string run;     // hex: versions of other runs do not count
  std::string source;  // the engine's workers follow it; empty: the workers are not ours
  std::chrono::milliseconds stage{60'000};
  // A version without a digest does not count as proven.
  std::shared_ptr<const VersionDigests> digests;
  Hash128 take_over = {};  // the run that may take the engine over from another run; zero: none
};
[[nodiscard]] std::unique_ptr<EngineSession> make_engine_session(
    std::unique_ptr<EngineTransport> transport, EngineSessionOptions options);

}  // namespace driftless
