// SPDX-License-Identifier: Apache-2.0
// Executor: what runs beside its caller until it ends by itself: on a thread, unless a test has
// replaced that for the calling thread, together with its clock (environment.h).
#pragma once

#include <functional>

namespace driftless {

class Executor {
 public:
  virtual ~Executor() = default;
  // Runs `body` beside the caller. What is returned waits for its end, and is to be called once.
  // Throws std::system_error if there is no thread to be had.
  [[nodiscard]] virtual std::function<void()> start(std::function<void()> body) = 0;
};

// The calling thread's.
[[nodiscard]] Executor& executor();

// Replaces the calling thread's executor until it is destroyed, on the same thread. `instead`
// outlives it.
class ExecutorScope {
 public:
  explicit ExecutorScope(Executor& instead);
  ~ExecutorScope();
  ExecutorScope(const ExecutorScope&) = delete;
  ExecutorScope& operator=(const ExecutorScope&) = delete;

 private:
  Executor* before_;
};

}  // namespace driftless
