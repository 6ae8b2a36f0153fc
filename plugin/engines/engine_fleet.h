// SPDX-License-Identifier: Apache-2.0
// EngineFleet: keeps the engines of a host at the newest version, each on a thread of its own, so
// that one that is slow, failing or dead holds up no other.
//
// An update that fails is tried again, ever more rarely, until a newer version takes its place.
//
// An engine that is idle is asked now and then what it serves. One that has lost its version, as it
// was started anew, is updated again at once. One that does not answer two looks in a row is not
// reachable, and holds nothing that anybody could name; it is asked ever more rarely, and with each
// version, until it answers: then it is as it was, or updated. A look takes kLook at most, and
// ends when a version comes, unless the engine failed before. The calls below are for one thread.
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
  static constexpr unsigned kLooks = 2;  // without an answer

  // An update counts as failed after calls.retries further tries. `look`: between two questions to
  // an engine that is idle.
  EngineFleet(const EngineCalls& calls, std::vector<std::string> urls,
              std::chrono::milliseconds look = std::chrono::seconds(10));
  EngineFleet(const EngineFleet&) = delete;
  EngineFleet& operator=(const EngineFleet&) = delete;
  ~EngineFleet();  // as stop()

  // True once stop() was called: what the sessions' links look at.
  [[nodiscard]] const std::atomic<bool>& stopping() const { return stop_; }
  // How the session of this engine makes its calls: as http_call(), within the bounds of a look.
  [[nodiscard]] HttpFunction http(std::size_t engine, HttpFunction call = http_call);
  // Sessions in the order of the urls; called once.
  void start(std::vector<std::unique_ptr<EngineSession>> sessions);
  // The engines are to be at this version; one more than the last.
  void set_goal(std::uint64_t version);
  // Records hold what an engine says of itself, and when; the rest of the origin, run, digest and
  // kind are the caller's. The updates that were finished, or given up for now, since the last
  // call, and what looks found out.
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
    // Of its own thread.
    std::optional<Deadline> look;    // while it is looked at
    unsigned unanswered = 0;         // looks in a row
    std::uint64_t held = 0;          // by a look that is not answered: what it held before
    bool whole = false;              // no version ends the look; with the mutex
    std::atomic<bool> hurry{false};  // ends a look
  };
  void run(Engine& engine);
  // What is to be done next, once there is something: a version to reach; 0: a look; nothing: stop.
  [[nodiscard]] std::optional<std::uint64_t> next(Engine& engine);
  [[nodiscard]] EngineRecord update(Engine& engine, std::uint64_t goal);
  void keep(Engine& engine, EngineRecord done);
  // Asks the engine what it serves. False: it did not answer. `whole`: also if a version comes.
  bool look(Engine& engine, bool whole);
  void note_goal(Engine& engine, std::uint64_t goal);
  // With the mutex.
  void note(Engine& engine, EngineRecord made);
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
