// SPDX-License-Identifier: Apache-2.0
#include "plugin/engines/driver_state.h"

#include <algorithm>

namespace driftless::driving {
namespace {

constexpr std::int64_t kFirstWaitMs = 50, kLongestWaitMs = 1'000;
constexpr std::int64_t kFirstLookMs = 2, kLongestLookMs = 50;

}  // namespace

Held held_by(const std::vector<RankReply>& replies) {
  Held held;
  if (replies.empty()) return held;
  held.one = replies.front().holds;
  held.kind = Held::kOne;
  for (const RankReply& reply : replies) {
    const EngineIdentity& holds = reply.holds;
    if (holds.version < 0) {
      held.kind = Held::kTorn;
      return held;
    }
    const bool reports_state = reply.state != "closed" && reply.state != "unknown";
    if (!reports_state && holds.run.empty() && holds.digest.empty()) held.kind = Held::kUnknown;
    if (holds != held.one && held.kind == Held::kOne) held.kind = Held::kDiffer;
  }
  return held;
}

EngineCall DriverState::make(Phase to, EngineCall next) {
  phase = to;
  tries = 0;
  next.pause = pause;
  next.must = pause == PauseState::kPaused || next.op == EngineOp::kResume || wrote ||
              request == Request::kClose;
  call = std::move(next);
  return call;
}

EngineCall DriverState::again() {
  const bool look = call.op == EngineOp::kLook;
  const std::int64_t shortest = look ? kFirstLookMs : kFirstWaitMs;
  pending = call;
  call = EngineCall{.op = EngineOp::kWait};
  call.wait_ms = std::min(look ? kLongestLookMs : kLongestWaitMs, shortest << std::min(tries, 10));
  call.must = pending.must;
  call.pause = pause;
  ++tries;
  return call;
}

EngineCall DriverState::end(Status status) {
  phase = Phase::kEnded;
  result.status = std::move(status);
  call = EngineCall{.op = EngineOp::kEnd};
  return call;
}

void DriverState::remember(const Status& failure) {
  if (problem.ok()) problem = failure;
}

EngineCall DriverState::stay_paused(const std::string& why) {
  result.left_paused = true;
  first = first || wrote;  // a late commit may still arrive: the next request drops what is staged
  return end(error(problem.ok() ? StatusCode::kMismatch : problem.code(), why,
                   "; the engine is left paused, because its weights may be no version of the run: "
                   "publish a full version, or restart it"));
}

void DriverState::take(const EngineAnswer& answer) {
  if (answer.paused) pause = PauseState::kPaused;
  if (answer.ranks.empty()) return;
  result.replies = answer.ranks;
  const std::optional<bool> session = answer.ranks.front().session;
  if (session) {
    options.session = std::ranges::all_of(
        answer.ranks, [](const RankReply& reply) { return reply.session.value_or(false); });
  }
}

void DriverState::note_time(double elapsed_ms) {
  double& spent = phase <= Phase::kStaged    ? result.times.stage_ms
                  : phase == Phase::kPausing ? result.times.pause_ms
                  : phase <= Phase::kUndone  ? result.times.apply_ms
                                             : result.times.resume_ms;
  spent += elapsed_ms;
  if (phase == Phase::kStaged || phase == Phase::kAhead) staging_ms += elapsed_ms;
}

bool DriverState::same_processes(const std::vector<RankReply>& replies) const {
  return std::ranges::equal(replies, processes, {}, &RankReply::process);
}

bool DriverState::updating() const {
  return std::ranges::any_of(result.replies,
                             [](const RankReply& reply) { return reply.updating.value_or(false); });
}

std::optional<std::string> DriverState::known_digest(std::int64_t version) const {
  if (!goal.digest_of || version < 0) return std::nullopt;
  return goal.digest_of(static_cast<std::uint64_t>(version));
}

bool DriverState::is_goal(const EngineIdentity& identity) const {
  if (goal.version == 0 || identity.version < 0) return false;
  if (static_cast<std::uint64_t>(identity.version) < goal.version) return false;
  const std::optional<std::string> digest = known_digest(identity.version);
  return identity.run == goal.run && digest && *digest == identity.digest;
}

bool DriverState::is_ahead(const EngineIdentity& identity) const {
  return goal.version > 0 && identity.run == goal.run && identity.version >= 0 &&
         static_cast<std::uint64_t>(identity.version) >= goal.version &&
         !known_digest(identity.version);
}

bool DriverState::holds_still(const EngineAnswer& answer) const {
  const Held held = held_by(answer.ranks);
  return answer.status.ok() && same_processes(answer.ranks) && held.kind == Held::kOne &&
         held.one == result.identity;
}

std::string DriverState::wanted_label() const {
  const EngineIdentity& held = result.identity;
  return held.run.empty() ? std::string(kUnprovenLabel) : std::to_string(held.version);
}

std::string DriverState::fingerprint() const {
  std::string text =
      concat(static_cast<int>(request), "/", static_cast<int>(phase), "/", to_string(call.op), "/",
             to_string(pending.op), "/", call.version, "/", static_cast<int>(pause), "/", tries,
             "/", stage_attempts, "/", corrections, "/", staged, "/", stagings);
  for (const bool flag : {first, dirty, reopened, brought, tidying, paused_running, staged_already,
                          wrote, reached, must_correct_label, refused, result.known, result.updated,
                          problem.ok(), finish_problem.ok(), options.session}) {
    text += flag ? '1' : '0';
  }
  for (const std::string& process : processes) text += concat("/", process);
  for (const auto& known : {before, labelled}) {
    text += concat("/", known ? to_string(*known) : "");
  }
  text += concat("/", to_string(result.identity), "/", goal.run, "/", goal.version);
  return text;
}

}  // namespace driftless::driving
