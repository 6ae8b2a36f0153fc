// SPDX-License-Identifier: Apache-2.0
#include "core/environment.h"

#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <thread>
#include <utility>

#include "core/line_log.h"

namespace driftless {
namespace {

class SystemEnvironment final : public Environment {
 public:
  TimePoint now() override { return std::chrono::steady_clock::now(); }
  void sleep_until(TimePoint when) override { std::this_thread::sleep_until(when); }
  [[nodiscard]] bool has_threads() const override { return true; }
  Hash128 random() override {
    Hash128 drawn;
    if (::getentropy(&drawn, sizeof(drawn)) != 0) std::abort();  // a kernel before Linux 3.17
    return drawn;
  }
  void log(std::string_view line) override { process_log().warning(line); }
};

// Null: the thread uses the system's environment.
thread_local Environment* replacement = nullptr;

}  // namespace

std::function<void()> Environment::start(std::function<void()> body) {
  const auto thread = std::make_shared<std::thread>(std::move(body));
  return [thread] { thread->join(); };
}

Environment& environment() {
  static SystemEnvironment system;
  return replacement == nullptr ? system : *replacement;
}

EnvironmentScope::EnvironmentScope(Environment& instead) : before_(replacement) {
  replacement = &instead;
}

EnvironmentScope::~EnvironmentScope() { replacement = before_; }

}  // namespace driftless
