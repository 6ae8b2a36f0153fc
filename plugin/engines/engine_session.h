// SPDX-License-Identifier: Apache-2.0
// EngineSession: brings one engine to a version, and confirms it; engine_fleet.h runs one for each
// engine, each on a thread of its own. There is one kind: a driver (engine_driver.h) and the
// transport that carries its calls.
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
  // Brings the engine to `goal` or a later version, or, if its ranks get there in steps only, on
  // the way to it; returns to which. A failure leaves it at the version that it had, or says that
  // it did not. To be called again after a failure.
  [[nodiscard]] virtual Result<std::uint64_t> update(std::uint64_t goal, CommitTimes& times) = 0;
  // Ok unless the engine serves something else (kMismatch): it was started anew, or another agent
  // has brought it to a version, also one of the same number. kIo or kDeadlineExceeded: it does not
  // answer. 0: only whether it answers.
  [[nodiscard]] virtual Status check(std::uint64_t /*version*/) { return {}; }
  // Whether the last update, which failed, found that the engine does not hold what the one before
  // brought it to.
  [[nodiscard]] virtual bool lost() const { return false; }
  // Resumes what is still paused, if its ranks hold one version.
  [[nodiscard]] virtual Status close() = 0;
};

// The digests of a run's versions, as far as they are known. Any thread.
class VersionDigests {
 public:
  void note(std::uint64_t version, const Digest& digest);
  [[nodiscard]] std::optional<Digest> find(std::uint64_t version) const;

 private:
  mutable std::mutex mutex_;
  std::map<std::uint64_t, Digest> digests_;
};

struct EngineSessionOptions {
  std::string run;     // hex: no other counts
  std::string source;  // that the engine's workers follow; empty: it has none of ours
  std::chrono::milliseconds stage{60'000};
  std::shared_ptr<const VersionDigests> digests;  // a version without one is not taken for proven
  Hash128 take_over = {};  // the run that may take the engine over from another; zero: none
};
[[nodiscard]] std::unique_ptr<EngineSession> make_engine_session(
    std::unique_ptr<EngineTransport> transport, EngineSessionOptions options);

}  // namespace driftless
