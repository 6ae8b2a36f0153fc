// SPDX-License-Identifier: Apache-2.0
// EngineFleet: keeps the engines of a host at the newest version, each on a thread of its own, so
// that one that is slow, failing or dead holds up no other.
//
// An update that fails is tried again, ever more rarely, until a newer version takes its place. An
// engine that is idle is asked for its label now and then: one that was started anew is updated
// again. The calls below are for one thread.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/deadline.h"
#include "core/status.h"
#include "plugin/engines/engine_session.h"

namespace driftless {

class EngineFleet {
 public:
  // An update counts as failed after calls.retries further tries. `look`: between two questions to
  // an engine that is idle.
  EngineFleet(const EngineCalls& calls, std::vector<std::string> urls,
              std::chrono::milliseconds look = std::chrono::seconds(10));
  EngineFleet(const EngineFleet&) = delete;
  EngineFleet& operator=(const EngineFleet&) = delete;
  ~EngineFleet();  // as stop()

  // True once stop() was called: what the sessions' links look at.
  [[nodiscard]] const std::atomic<bool>& stopping() const { return stop_; }
  // Sessions in the order of the urls; called once.
  void start(std::vector<std::unique_ptr<EngineSession>> sessions);
  // The engines are to be at this version; one more than the last.
  void set_goal(std::uint64_t version);
  // Records hold what an engine says of itself; origin, run, digest and kind are the caller's.
  // The updates that were finished, or given up for now, since the last call.
  [[nodiscard]] std::vector<EngineRecord> take_updates();
  // What each engine holds now.
  [[nodiscard]] std::vector<EngineRecord> states() const;
  // Whether every engine is at `version`.
  [[nodiscard]] bool all_at(std::uint64_t version) const;
  // Ends what may be ended; engines that are paused are resumed before it returns, if their ranks
  // hold one version. `confirm`: each is asked once more what it serves.
  void stop(bool confirm = false);

 private:
  struct Engine {
    EngineRecord state;
    std::unique_ptr<EngineSession> session;
    std::function<void()> join;  // empty: it does not run
  };
  void run(Engine& engine);
  [[nodiscard]] EngineRecord update(Engine& engine, std::uint64_t goal);
  // What is not at its version any more is at none.
  void confirm(Engine& engine);
  // Sleeps; false: stopping, or there is a newer goal.
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
