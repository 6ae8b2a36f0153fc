// SPDX-License-Identifier: Apache-2.0
#include "plugin/engines/engine_fleet.h"

#include <algorithm>
#include <system_error>

#include "core/environment.h"

namespace driftless {
namespace {

constexpr std::chrono::milliseconds kLongestWait{10'000};
constexpr std::size_t kMaxUpdates = 4096;  // that nobody took

}  // namespace

EngineFleet::EngineFleet(const EngineCalls& calls, std::vector<std::string> urls,
                         std::chrono::milliseconds look)
    : calls_(calls), look_(look) {
  for (std::string& url : urls) {
    engines_.push_back(std::make_unique<Engine>());
    engines_.back()->state.engine = std::move(url);
  }
}

EngineFleet::~EngineFleet() { stop(); }

void EngineFleet::start(std::vector<std::unique_ptr<EngineSession>> sessions) {
  for (std::size_t i = 0; i < engines_.size(); ++i) {
    Engine& engine = *engines_[i];
    engine.session = std::move(sessions[i]);
    try {
      engine.join = environment().start([this, &engine] { run(engine); });
    } catch (const std::system_error& failed) {
      const std::scoped_lock lock(mutex_);
      engine.state.status = error(StatusCode::kInternal, "no thread to be had: ", failed.what());
    }
  }
}

void EngineFleet::set_goal(std::uint64_t version) {
  const std::scoped_lock lock(mutex_);
  goal_ = version;
  changed_.notify_all();
}

std::vector<EngineRecord> EngineFleet::take_updates() {
  const std::scoped_lock lock(mutex_);
  return std::exchange(updates_, {});
}

std::vector<EngineRecord> EngineFleet::states() const {
  const std::scoped_lock lock(mutex_);
  std::vector<EngineRecord> states;
  for (const auto& engine : engines_) states.push_back(engine->state);
  return states;
}

bool EngineFleet::all_at(std::uint64_t version) const {
  const std::scoped_lock lock(mutex_);
  return std::ranges::all_of(engines_, [&](const auto& engine) {
    return engine->state.status.ok() && engine->state.version == version;
  });
}

void EngineFleet::stop(bool confirm) {
  {
    const std::scoped_lock lock(mutex_);
    confirm_ = confirm && !stop_;
    stop_ = true;
    changed_.notify_all();
  }
  for (const auto& engine : engines_) {
    if (engine->join) std::exchange(engine->join, {})();
  }
}

bool EngineFleet::sleep(std::chrono::milliseconds wait, std::uint64_t goal) {
  std::unique_lock lock(mutex_);
  return !wait_until(changed_, lock, environment().now() + wait,
                     [&] { return stop_ || goal_ != goal; });
}

void EngineFleet::run(Engine& engine) {
  std::uint64_t failed_goal = 0;
  std::chrono::milliseconds pause = calls_.retry_wait;
  for (;;) {
    std::uint64_t goal = 0;
    {
      std::unique_lock lock(mutex_);
      const auto news = [&] { return stop_ || goal_ > engine.state.version; };
      const bool idle = !wait_until(changed_, lock, environment().now() + look_, news);
      if (stop_) break;
      goal = idle ? 0 : goal_;
    }
    if (goal == 0) {
      confirm(engine);
      continue;
    }
    if (goal == failed_goal) {
      // Given up already: now and then, until something newer is there.
      pause = std::min(2 * pause, kLongestWait);
      if (!sleep(pause, goal)) continue;
    } else {
      pause = calls_.retry_wait;
    }
    EngineRecord done = update(engine, goal);
    failed_goal = done.status.ok() ? 0 : goal;
    const std::scoped_lock lock(mutex_);
    if (stop_ && !done.status.ok()) continue;  // what was cut short is no failure of the engine
    engine.state = done;
    if (done.status.ok()) engine.state.confirmed = done.version;
    if (!done.status.ok() && engine.session->lost()) engine.state.version = 0;
    if (updates_.size() < kMaxUpdates) updates_.push_back(std::move(done));
  }
  if (confirm_) confirm(engine);
  const Status closed = engine.session->close();
  if (closed.ok()) return;
  const std::scoped_lock lock(mutex_);
  engine.state.status = closed;
}

void EngineFleet::confirm(Engine& engine) {
  if (engine.state.version == 0 || !engine.state.status.ok()) return;
  Status still = engine.session->check(engine.state.version);
  const std::scoped_lock lock(mutex_);
  // One that does not answer now may serve it still, unless this was the last question.
  if (still.ok() || (still.code() != StatusCode::kMismatch && !stop_)) return;
  engine.state.version = 0;
  if (stop_) engine.state.status = std::move(still);
}

EngineRecord EngineFleet::update(Engine& engine, std::uint64_t goal) {
  EngineRecord done = engine.state;
  done.goal = goal;
  done.attempts = 0;
  std::chrono::milliseconds wait = calls_.retry_wait;
  for (unsigned tries = 0; tries <= calls_.retries; ++tries) {
    if (tries > 0 && !sleep(wait, goal)) break;
    if (tries > 0) wait = std::min(2 * wait, kLongestWait);
    ++done.attempts;
    done.commit = {};
    const Result<std::uint64_t> reached = engine.session->update(goal, done.commit);
    done.status = reached.status();
    if (!reached.ok()) continue;
    done.version = *reached;
    break;
  }
  return done;
}

}  // namespace driftless
