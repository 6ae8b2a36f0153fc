// SPDX-License-Identifier: Apache-2.0
#include "core/executor.h"

#include <memory>
#include <thread>
#include <utility>

namespace driftless {
namespace {

class Threads final : public Executor {
 public:
  std::function<void()> start(std::function<void()> body) override {
    const auto thread = std::make_shared<std::thread>(std::move(body));
    return [thread] { thread->join(); };
  }
};

// Null: threads.
thread_local Executor* executor_instead = nullptr;

}  // namespace

Executor& executor() {
  static Threads threads;
  return executor_instead == nullptr ? threads : *executor_instead;
}

ExecutorScope::ExecutorScope(Executor& instead) : before_(executor_instead) {
  executor_instead = &instead;
}

ExecutorScope::~ExecutorScope() { executor_instead = before_; }

}  // namespace driftless
