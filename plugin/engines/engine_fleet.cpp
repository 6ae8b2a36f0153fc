// SPDX-License-Identifier: Apache-2.0
#include "plugin/engines/engine_fleet.h"

#include <algorithm>
#include <system_error>

#include "core/environment.h"

namespace driftless {
namespace {

constexpr std::chrono::milliseconds kShortestWait{100}, kLongestWait{10'000};
constexpr std::size_t kMaxUpdates = 4096;  // kept until the caller takes them

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
      engine.state.status = error(StatusCode::kInternal, "no thread started: ", failed.what());
    }
  }
}

void EngineFleet::set_goal(std::uint64_t version) {
  const std::scoped_lock lock(mutex_);
  goal_ = version;
  for (const auto& engine : engines_) engine->hurry = !engine->whole;
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
    for (const auto& engine : engines_) engine->hurry = true;
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

std::optional<std::uint64_t> EngineFleet::next(Engine& engine) {
  const bool away = !engine.state.reachable;
  std::chrono::milliseconds wait = look_;
  if (engine.unanswered > 0) {
    const auto doubled = calls_.retry_wait * (1U << std::min(engine.unanswered, 16U));
    wait = std::min({look_, kLongestWait, std::max(doubled, kShortestWait)});
  }
  std::unique_lock lock(mutex_);
  // An engine that does not answer gets no updates, only looks: at each new version, and in
  // between.
  const auto news = [&] {
    return stop_ || goal_ > (away ? engine.state.goal : engine.state.version);
  };
  const bool idle = !wait_until(changed_, lock, environment().now() + wait, news);
  if (stop_) return std::nullopt;
  return idle ? 0 : goal_;
}

void EngineFleet::run(Engine& engine) {
  std::uint64_t failed_goal = 0;
  std::chrono::milliseconds pause = calls_.retry_wait;
  while (const std::optional<std::uint64_t> goal = next(engine)) {
    const bool away = !engine.state.reachable;
    if (*goal == 0 || away) {
      if (away) note_goal(engine, *goal);
      if (look(engine, away) && away) failed_goal = 0;  // it answers again
      continue;
    }
    if (*goal == failed_goal) {
      // This update failed before: retry less and less often, until a newer version replaces it.
      pause = std::min(2 * pause, kLongestWait);
      if (!sleep(pause, *goal)) continue;
    } else {
      pause = calls_.retry_wait;
    }
    // An update locks the checkpoint's files, and the updates of other engines wait for the lock.
    // So check first that this engine answers.
    if (failed_goal > 0 && !look(engine, true)) continue;
    EngineRecord done = update(engine, *goal);
    failed_goal = done.status.ok() ? 0 : *goal;
    keep(engine, std::move(done));
  }
  if (confirm_) look(engine, true);
  const Status closed = engine.session->close();
  if (closed.ok()) return;
  const std::scoped_lock lock(mutex_);
  engine.state.status = closed;
}

void EngineFleet::note_goal(Engine& engine, std::uint64_t goal) {
  const std::scoped_lock lock(mutex_);
  engine.state.goal = std::max(engine.state.goal, goal);
}

void EngineFleet::keep(Engine& engine, EngineRecord done) {
  const std::scoped_lock lock(mutex_);
  if (stop_ && !done.status.ok()) return;  // the stop cut the update short; the engine did not fail
  if (done.status.ok()) {
    done.confirmed = done.version;
    done.reachable = true;
    done.reload = false;
    engine.unanswered = 0;
  } else if (engine.session->lost()) {
    done.version = engine.held = 0;
  }
  note(engine, std::move(done));
}

void EngineFleet::note(Engine& engine, EngineRecord made) {
  made.origin = record_origin({}, 0);
  engine.state = made;
  if (updates_.size() < kMaxUpdates) updates_.push_back(std::move(made));
}

HttpFunction EngineFleet::http(std::size_t engine, HttpFunction call) {
  return
      [&engine = *engines_[engine], call = std::move(call)](
          const HttpCall& asked, std::chrono::milliseconds timeout, const std::atomic<bool>* stop) {
        if (!engine.look) return call(asked, timeout, stop);
        return call(asked, std::min(timeout, engine.look->remaining()), &engine.hurry);
      };
}

bool EngineFleet::look(Engine& engine, bool whole) {
  const bool away = !engine.state.reachable;
  bool last = false;
  {
    const std::scoped_lock lock(mutex_);
    last = stop_;
    const bool news = goal_ > std::max(engine.state.goal, engine.state.version);
    if (!whole && news) return false;  // a new version arrived meanwhile
    engine.hurry = false;
    engine.whole = whole;
    if (!away) engine.held = engine.state.version;
  }
  if (last && (engine.held == 0 || !engine.state.status.ok())) return true;
  engine.look = Deadline::after(kLook);
  Status still = engine.session->check(engine.held);
  engine.look.reset();
  const bool silent =
      still.code() == StatusCode::kIo || still.code() == StatusCode::kDeadlineExceeded;
  const std::scoped_lock lock(mutex_);
  if (engine.hurry && !still.ok()) return false;  // the look was cut short
  engine.unanswered = silent ? engine.unanswered + 1 : 0;
  EngineRecord found = engine.state;
  found.attempts = 0;
  found.commit = {};
  if (last ? !still.ok() : silent) {
    // The engine may still serve its version, unless this was the last look.
    if (away || (!last && engine.unanswered < kLooks)) return false;
    found.version = 0;
    found.reachable = !silent;
    found.status = last ? still : error(still.code(), "does not answer: ", still.message());
    note(engine, std::move(found));
    return false;
  }
  const bool lost = still.code() == StatusCode::kMismatch && engine.held > 0;
  if (!away && !lost) return true;
  found.reachable = true;
  found.version = lost || !still.ok() ? 0 : engine.held;
  found.reload = found.version == 0 && found.confirmed > 0;
  found.status = lost ? std::move(still) : Status();
  note(engine, std::move(found));
  return true;
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
