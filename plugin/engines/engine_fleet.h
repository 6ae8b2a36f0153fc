// SPDX-License-Identifier: Apache-2.0
// EngineFleet: keeps the engines of a host at the newest version. Each engine has its own thread,
// so that a slow, failing or dead engine delays no other.
//
// A failed update is retried, less and less often, until a newer version replaces it.
//
// The fleet polls an idle engine for its version now and then (a look). An engine that has lost its
// version, because it was restarted, is updated again at once. An engine that does not answer two
// looks in a row counts as unreachable, and its version as unknown. The fleet then polls it less
// and less often, and at each new version, until it answers and is found unchanged or is updated. A
// look takes kLook at most; a new version ends it early, unless the engine failed before. Call the
// functions below from one thread.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "core/deadline.h"
#include "core/status.h"
#include "plugin/engines/engine_session.h"

namespace driftless {

class EngineFleet {
 public:
  static constexpr std::chrono::milliseconds kLook{5'000};
  static constexpr unsigned kLooks = 2;  // looks without an answer

  // An update counts as failed after calls.retries retries. `look`: time between two looks at an
  // idle engine.
  EngineFleet(const EngineCalls& calls, std::vector<std::string> urls,
              std::chrono::milliseconds look = std::chrono::seconds(10));
  EngineFleet(const EngineFleet&) = delete;
  EngineFleet& operator=(const EngineFleet&) = delete;
  ~EngineFleet();  // calls stop()

  // True once stop() was called; the sessions' links watch it.
  [[nodiscard]] const std::atomic<bool>& stopping() const { return stop_; }
  // The function with which this engine's session makes its calls: as http_call(), within the time
  // limits of a look.
  [[nodiscard]] HttpFunction http(std::size_t engine, HttpFunction call = http_call);
  // Sessions in the order of the urls. Call it once.
  void start(std::vector<std::unique_ptr<EngineSession>> sessions);
  // Sets the version that the engines shall reach. It never goes back.
  void set_goal(std::uint64_t version);
  // Returns the updates that ended since the last call, successful or given up for now, and the
  // results of looks. A record holds the engine's own report and its time; the caller fills in the
  // rest of the origin, the run, the digest and the kind.
  [[nodiscard]] std::vector<EngineRecord> take_updates();
  // The present state of each engine.
  [[nodiscard]] std::vector<EngineRecord> states() const;
  // Whether every engine is at `version`.
  [[nodiscard]] bool all_at(std::uint64_t version) const;
  // Stops all threads and cuts short the calls that allow it. Before it returns, it resumes paused
  // engines whose ranks hold one version. `confirm`: polls each engine once more.
  void stop(bool confirm = false);

 private:
  struct Engine {
    EngineRecord state;
    std::unique_ptr<EngineSession> session;
    std::function<void()> join;  // empty: no thread is running
    // Used only by the engine's own thread.
    std::optional<Deadline> look;    // set during a look
    unsigned unanswered = 0;         // consecutive looks without an answer
    std::uint64_t held = 0;          // the version held before a look that was not answered
    bool whole = false;              // a new version does not end the look; guarded by the mutex
    std::atomic<bool> hurry{false};  // ends a look
  };
  void run(Engine& engine);
  // Waits for the next task: a version to reach, or 0 for a look; none: the fleet stops.
  [[nodiscard]] std::optional<std::uint64_t> next(Engine& engine);
  [[nodiscard]] EngineRecord update(Engine& engine, std::uint64_t goal);
  void keep(Engine& engine, EngineRecord done);
  // Polls the engine for its version. False: it did not answer. `whole`: a new version does not end
  // the poll.
  bool look(Engine& engine, bool whole);
  void note_goal(Engine& engine, std::uint64_t goal);
  // Call it with the mutex held.
  void note(Engine& engine, EngineRecord made);
  // Sleeps. False if the fleet is stopping or has a newer goal.
  [[nodiscard]] bool sleep(std::chrono::milliseconds wait, std::uint64_t goal);

  const EngineCalls calls_;
  const std::chrono::milliseconds look_;
  std::atomic<bool> stop_{false};
  bool confirm_ = false;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t goal_ = 0;
  std::vector<EngineRecord> updates_;
  std::vector<std::unique_ptr<Engine>> engines_;
};

}  // namespace driftless
