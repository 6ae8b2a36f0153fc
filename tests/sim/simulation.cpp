// SPDX-License-Identifier: Apache-2.0
#include "sim/simulation.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <utility>

namespace driftless::testing {
namespace {

using std::chrono::hours;
using std::chrono::microseconds;
using std::chrono::milliseconds;

const Environment::TimePoint kBegin{hours(1000)};
constexpr std::size_t kTraceLines = 4000;

}  // namespace

Simulation::Simulation(std::uint64_t seed, const SimulationOptions& options)
    : options_(options), random_(seed), now_(kBegin) {}

Simulation::~Simulation() = default;

std::shared_ptr<Process> Simulation::start(std::string name, std::function<void(Process&)> body) {
  auto process = std::make_shared<Process>();
  process->name = std::move(name);
  start_fiber(process, [body = std::move(body), raw = process.get()] { body(*raw); });
  return process;
}

void Simulation::start_fiber(const std::shared_ptr<Process>& process, std::function<void()> body) {
  ++process->fibers;
  auto thread = std::make_unique<Thread>();
  thread->process = process;
  thread->wake = now_;
  thread->fiber = std::make_unique<Fiber>([process, body = std::move(body)] {
    body();
    --process->fibers;
  });
  threads_.push_back(std::move(thread));
  if (!failure_.empty()) kill(*process);  // after a failure nothing starts
}

std::function<void()> Simulation::start(std::function<void()> body) {
  const auto ended = std::make_shared<bool>(false);
  start_fiber(running_->process, [body = std::move(body), ended] {
    body();
    *ended = true;
  });
  return [this, ended] {
    for (milliseconds poll(1); !*ended; poll = std::min(2 * poll, milliseconds(100))) sleep(poll);
  };
}

Simulation::Thread* Simulation::next() {
  if (threads_.empty()) return nullptr;
  const auto first = std::ranges::min_element(
      threads_, {}, [](const std::unique_ptr<Thread>& thread) { return thread->wake; });
  now_ = std::max(now_, (*first)->wake);
  std::vector<Thread*> ready;
  for (const auto& thread : threads_) {
    if (thread->wake <= now_) ready.push_back(thread.get());
  }
  return ready[random_.below(ready.size())];
}

void Simulation::run(const std::function<void(const Process&)>& check) {
  const EnvironmentScope scope(*this);
  while (Thread* const thread = next()) {
    running_ = thread;
    const std::shared_ptr<Process> process = thread->process;
    thread->fiber->enter();
    running_ = nullptr;
    if (thread->fiber->ended()) {
      std::erase_if(threads_, [&](const auto& held) { return held.get() == thread; });
    }
    if (failure_.empty()) check(*process);
  }
}

Process& Simulation::self() { return *running_->process; }

void Simulation::leave(TimePoint wake) {
  if (++steps_ > options_.max_steps) {
    fail(concat(self().name, ": the simulation does not end"));
    if (steps_ > 2 * options_.max_steps) {
      for (const std::string& line : trace_) std::fprintf(stderr, "%s\n", line.c_str());
      for (const auto& thread : threads_) {
        std::fprintf(stderr, "a dead process does not end: %s\n", thread->process->name.c_str());
      }
      std::abort();  // a fiber cannot be removed from its stack
    }
  }
  running_->wake = wake;
  running_->fiber->leave();
}

Status Simulation::step() {
  Process& process = self();
  const auto dead = [&] { return error(StatusCode::kIo, process.name, ": the process is dead"); };
  if (process.dead) return dead();
  ++steps_;
  now_ += microseconds(random_.below(100));
  if (process.crash_in > 0 && --process.crash_in == 0) kill(process);
  if (process.dead) return dead();
  if (random_.chance(options_.stall_rate)) {
    // From a millisecond to half an hour.
    const auto lost = milliseconds(std::uint64_t{1} << random_.below(21));
    trace(concat(process.name, " stalls for ", lost.count(), " ms"));
    process.lost += lost;
    leave(now_ + lost);
  } else if (random_.chance(options_.switch_rate)) {
    leave(now_);
  }
  return process.dead ? dead() : Status();
}

void Simulation::kill(Process& process) {
  if (process.dead) return;
  process.dead = true;
  process.ahead += hours(24 * 365);
  trace(concat(process.name, " dies"));
  for (const auto& thread : threads_) {
    if (thread->process.get() == &process) thread->wake = std::min(thread->wake, now_);
  }
  if (process.when_dead) process.when_dead();
}

void Simulation::jump(Process& process, std::chrono::nanoseconds time) {
  process.ahead += time;
  process.lost += time;
}

void Simulation::within(milliseconds limit, const std::string& what,
                        const std::function<void()>& work) {
  Process& process = self();
  const TimePoint begin = now();
  const auto lost = process.lost;
  work();
  const auto took = (now() - begin) - (process.lost - lost);
  if (process.dead || took <= limit + std::chrono::seconds(1)) return;
  fail(concat(process.name, ": ", what, " took ", took / milliseconds(1), " ms of at most ",
              limit.count()));
}

void Simulation::fail(const std::string& what) {
  if (!failure_.empty()) return;
  failure_ = what;
  trace(concat("FAILED: ", what));
  for (const auto& thread : threads_) kill(*thread->process);
}

void Simulation::trace(const std::string& line) {
  if (trace_.size() == kTraceLines) trace_.erase(trace_.begin(), trace_.begin() + kTraceLines / 2);
  trace_.push_back(concat("[", elapsed().count(), " ms] ", line));
}

milliseconds Simulation::elapsed() const {
  return std::chrono::duration_cast<milliseconds>(now_ - kBegin);
}

Environment::TimePoint Simulation::now() {
  return running_ == nullptr ? now_ : now_ + running_->process->ahead;
}

void Simulation::sleep_until(TimePoint when) {
  Process& process = *running_->process;
  if (process.dead) {  // its own time passes, and no other's
    process.ahead = std::max(process.ahead, std::chrono::nanoseconds(when - now_));
    leave(now_);
  } else {
    leave(std::max(now_, when - process.ahead));
  }
}

}  // namespace driftless::testing
