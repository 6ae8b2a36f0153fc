// SPDX-License-Identifier: Apache-2.0
#include "plugin/observe/run_view.h"

#include <algorithm>

#include "core/utc_time.h"

namespace driftless {

void RunView::open(const Hash128& run, std::uint64_t version, std::string digest) {
  const std::scoped_lock lock(mutex_);
  open_ = true;
  see(run, version, std::move(digest));
}

// The trainer counts as alive while it makes records.
void RunView::see(const Hash128& run, std::uint64_t version, std::string digest) {
  now_.run = run;
  now_.version = version;
  now_.digest = std::move(digest);
  if (role_ != "trainer") return;
  now_.trainer = TrainerState::kAlive;
  now_.trainer_seen = record_origin(role_, rank_).time;
}

void RunView::made(std::string_view created) {
  const Moment when = parse_utc(created).value_or(Moment::clock::now());
  const std::scoped_lock lock(mutex_);
  if (!made_.empty() && when <= made_.back()) return;  // an anchor of an earlier version
  made_.push_back(when);
  if (made_.size() > kMostMoments) made_.pop_front();
  now_.trainer_seen = utc_text(when);
}

void RunView::reaches_trainer(bool reaches) {
  const std::scoped_lock lock(mutex_);
  reaches_ = reaches;
}

void RunView::listed(std::uint64_t version) {
  const std::scoped_lock lock(mutex_);
  listed_ = version;
}

// A declared end stays, and so does the state that a trainer reports about itself.
TrainerState RunView::trainer() const {
  if (role_ == "trainer" || now_.trainer == TrainerState::kEnded) return now_.trainer;
  if (!reaches_) return TrainerState::kSilent;
  if (made_.empty()) return TrainerState::kUnknown;
  const auto age =
      std::chrono::duration_cast<std::chrono::milliseconds>(Moment::clock::now() - made_.back());
  const std::vector<Moment> moments(made_.begin(), made_.end());
  const auto usual = usual_interval(moments);
  if (age > longest_silence(usual)) return TrainerState::kSilent;
  const bool fresh = age <= longest_silence(std::chrono::milliseconds(0));
  return usual || fresh ? TrainerState::kAlive : TrainerState::kUnknown;
}

void RunView::replace(std::vector<EngineRecord> engines) {
  if (engines.size() > kPeers) engines.resize(kPeers);
  const std::scoped_lock lock(mutex_);
  now_.engines = std::move(engines);
}

void RunView::add(const VersionRecord& record) {
  auto kept = std::make_shared<const VersionRecord>(record);
  const std::scoped_lock lock(mutex_);
  now_.failing.clear();
  now_.fallback = record.fallback;
  open_ = true;
  see(record.run, record.version, to_hex(record.digest));
  versions_.push_back(std::move(kept));
  if (versions_.size() > kVersions) versions_.pop_front();
}

void RunView::add(const EngineRecord& record) {
  const std::scoped_lock lock(mutex_);
  const auto at = std::ranges::find(now_.engines, record.engine, &EngineRecord::engine);
  if (at != now_.engines.end()) {
    *at = record;
  } else if (now_.engines.size() < kPeers) {
    now_.engines.push_back(record);
  }
  if (!record.status.ok()) ++now_.refusals[std::string(to_string(record.status.code()))];
}

void RunView::replace(std::span<const RolloutRecord> rollouts) {
  rollouts = rollouts.first(std::min(rollouts.size(), kPeers));
  const std::scoped_lock lock(mutex_);
  now_.rollouts.assign(rollouts.begin(), rollouts.end());
}

void RunView::failed(const Status& status) {
  const std::string code(to_string(status.code()));
  const std::scoped_lock lock(mutex_);
  if (now_.refusals.size() < kCodes || now_.refusals.contains(code)) ++now_.refusals[code];
}

void RunView::cannot_take(const Status& why) {
  const std::scoped_lock lock(mutex_);
  now_.failing = why.to_string();
  failed_at_ = std::chrono::steady_clock::now();
}

bool RunView::failing() const {
  return !now_.failing.empty() && std::chrono::steady_clock::now() - failed_at_ < kFailing;
}

void RunView::add(const EndRecord& record) {
  if (role_ != "trainer") return;  // an agent's end does not end the run
  const std::scoped_lock lock(mutex_);
  see(record.run, record.version, record.digest);
  now_.trainer = TrainerState::kEnded;
}

void RunView::end_run() {
  const std::scoped_lock lock(mutex_);
  now_.trainer = TrainerState::kEnded;
}

RunStatus RunView::status(std::uint64_t since) const {
  std::vector<std::shared_ptr<const VersionRecord>> found;
  RunStatus status;
  {
    const std::scoped_lock lock(mutex_);
    status = now_;
    status.trainer = trainer();
    if (!failing()) status.failing.clear();
    for (auto at = versions_.rbegin(); at != versions_.rend() && (*at)->version > since; ++at) {
      found.push_back(*at);
    }
  }
  status.origin = record_origin(role_, rank_);
  status.versions.reserve(found.size());
  for (auto at = found.rbegin(); at != found.rend(); ++at) status.versions.push_back(**at);
  return status;
}

Readiness RunView::readiness(std::uint64_t max_lag) const {
  const std::scoped_lock lock(mutex_);
  Readiness found{false, now_.run, now_.version, 0, {}};
  const bool agent = role_ == "agent";
  if (!open_) {
    found.reason = "no run is open yet";
  } else if (agent && now_.version == 0) {
    found.reason = "no version was handed over yet";
  } else if (agent && failing()) {
    found.reason = concat("the next version cannot be taken: ", now_.failing);
  }
  const std::uint64_t newest = std::max(now_.version, listed_);
  if (agent && found.reason.empty() && newest - now_.version > max_lag) {
    found.lag = newest - now_.version;
    found.reason = concat("the road has version ", newest, ", this agent holds ", now_.version);
  }
  for (const EngineRecord& engine : now_.engines) {
    if (!agent || !found.reason.empty()) break;
    const std::uint64_t lag = newest > engine.version ? newest - engine.version : 0;
    found.lag = std::max(found.lag, lag);
    const bool none = engine.version == 0;
    if (!none && lag <= max_lag) continue;
    found.reason = concat("engine ", engine.engine,
                          !engine.reachable ? " cannot be reached"
                          : engine.reload   ? " lost its version and is to be loaded again"
                          : none            ? " holds no version"
                                            : concat(" is ", lag, " versions behind"));
    if (engine.status.ok()) continue;
    found.reason += concat(": ", to_string(engine.status.code()), ": ", engine.status.message());
  }
  found.ready = found.reason.empty();
  return found;
}

}  // namespace driftless
