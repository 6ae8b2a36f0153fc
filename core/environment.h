// SPDX-License-Identifier: Apache-2.0
// Environment: the source of time, threads and random ids for this library, and the sink of its log
// lines.
//
// By default these are the operating system's. A test may replace the environment of one thread, so
// that a simulation decides how time passes and each of its runs is the same (tests/sim). Nothing
// else replaces it, and no other thread sees the replacement.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string_view>

#include "core/hash128.h"

namespace driftless {

class Environment {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  virtual ~Environment() = default;
  // Monotonic.
  [[nodiscard]] virtual TimePoint now() = 0;
  virtual void sleep_until(TimePoint when) = 0;
  // False: work that would run on other threads runs on the caller's, and nobody can notify a
  // condition variable while the caller waits for it.
  [[nodiscard]] virtual bool has_threads() const = 0;
  // Runs `body` on a new thread. The function that is returned waits for its end; call it exactly
  // once. Throws std::system_error if the system refuses a thread.
  [[nodiscard]] virtual std::function<void()> start(std::function<void()> body);
  // 128 random bits.
  [[nodiscard]] virtual Hash128 random() = 0;
  // Writes one line for the operator. The system's environment writes to stderr.
  virtual void log(std::string_view /*line*/) {}
};

// The environment of the calling thread.
[[nodiscard]] Environment& environment();

// Replaces the environment of the calling thread until this object is destroyed, on the same
// thread. `instead` outlives this object.
class EnvironmentScope {
 public:
  explicit EnvironmentScope(Environment& instead);
  ~EnvironmentScope();
  EnvironmentScope(const EnvironmentScope&) = delete;
  EnvironmentScope& operator=(const EnvironmentScope&) = delete;

 private:
  Environment* before_;
};

// condition_variable::wait_until() by the clock of this thread's environment.
template <typename Ready>
bool wait_until(std::condition_variable& changed, std::unique_lock<std::mutex>& lock,
                Environment::TimePoint end, const Ready& ready) {
  Environment& here = environment();
  if (here.has_threads()) return changed.wait_until(lock, end, ready);
  constexpr std::chrono::milliseconds kLongestPoll(100);
  for (std::chrono::milliseconds poll(1); !ready(); poll = std::min(2 * poll, kLongestPoll)) {
    const Environment::TimePoint now = here.now();
    if (now >= end) return false;
    lock.unlock();
    here.sleep_until(std::min(now + poll, end));
    lock.lock();
  }
  return true;
}

}  // namespace driftless
