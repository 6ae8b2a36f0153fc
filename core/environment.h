// SPDX-License-Identifier: Apache-2.0
// Environment: time, threads, random ids and lines for people, as the code of this library sees
// them.
//
// The operating system's by default. A test may replace it for one thread, so that a simulation
// decides how time passes and every run of it is the same (tests/sim). Nothing else replaces it,
// and no other thread sees the replacement.
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
  // False: whatever would run on threads of its own is done by the caller, and nobody can notify a
  // condition variable while the caller waits for it.
  [[nodiscard]] virtual bool has_threads() const = 0;
  // Runs `body` beside the caller, on a thread. What is returned waits for its end, and is to be
  // called once. Throws std::system_error if there is no thread to be had.
  [[nodiscard]] virtual std::function<void()> start(std::function<void()> body);
  // 128 random bits.
  [[nodiscard]] virtual Hash128 random() = 0;
  // One line for whoever watches the process. The system's goes to stderr.
  virtual void say(std::string_view /*line*/) {}
};

// The calling thread's.
[[nodiscard]] Environment& environment();

// Replaces the calling thread's environment until it is destroyed, on the same thread. `instead`
// outlives it.
class EnvironmentScope {
 public:
  explicit EnvironmentScope(Environment& instead);
  ~EnvironmentScope();
  EnvironmentScope(const EnvironmentScope&) = delete;
  EnvironmentScope& operator=(const EnvironmentScope&) = delete;

 private:
  Environment* before_;
};

// condition_variable::wait_until() in the time of this thread's environment.
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
