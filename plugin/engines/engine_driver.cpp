// SPDX-License-Identifier: Apache-2.0
#include "plugin/engines/engine_driver.h"

#include <algorithm>
#include <array>

namespace driftless {
namespace {

constexpr int kTries = 4;  // of a call that must succeed
constexpr std::int64_t kFirstWaitMs = 50, kLongestWaitMs = 1'000;
constexpr std::int64_t kFirstLookMs = 2, kLongestLookMs = 50;

}  // namespace

std::string_view to_string(EngineOp op) {
  static constexpr std::array<std::string_view, 18> kNames{
      "end",        "wait",      "status",      "look",   "open",   "close",
      "stage",      "rollback",  "pause",       "begin",  "write",  "finish",
      "read_label", "set_label", "clear_cache", "resume", "shares", "read"};
  return kNames.at(static_cast<std::size_t>(op));
}

// --- requests ----------------------------------------------------------------------------------

EngineCall EngineDriver::start(Request request) {
  request_ = request;
  result_ = {};
  problem_ = finish_problem_ = {};
  reopened_ = brought_ = tidying_ = paused_running_ = wrote_ = reached_ = false;
  told_label_ = false;
  corrections_ = 0;
  before_.reset();
  stage_attempts_ = 0;
  staging_ms_ = 0;
  return make(Phase::kFirstAsk, EngineOp::kAsk);
}

EngineCall EngineDriver::begin_open(std::string run) {
  goal_ = {};
  goal_.run = std::move(run);
  staged_already_ = false;
  return start(Request::kOpen);
}

EngineCall EngineDriver::begin_staging(std::int64_t stage_ms) {
  options_.stage_ms = stage_ms;
  goal_ = {};
  static_cast<void>(start(Request::kStaging));
  processes_.clear();  // whoever begins to stage
  return stage();
}

EngineCall EngineDriver::begin_wait_staged(std::int64_t stage_ms) {
  options_.stage_ms = stage_ms;
  goal_ = {};
  static_cast<void>(start(Request::kWaitStaged));
  return make(Phase::kStaged, EngineOp::kLook);
}

EngineCall EngineDriver::begin_update(EngineGoal goal, bool staged) {
  goal_ = std::move(goal);
  staged_already_ = staged;
  return start(Request::kUpdate);
}

EngineCall EngineDriver::begin_close() {
  goal_ = {};
  staged_already_ = false;
  const EngineCall ask = start(Request::kClose);
  const bool ours = pause_ == PauseState::kPaused || (pause_ == PauseState::kUnknown && !first_);
  return ours ? ask : end({});
}

// --- calls -------------------------------------------------------------------------------------

EngineCall EngineDriver::make(Phase phase, EngineCall call) {
  phase_ = phase;
  tries_ = 0;
  call.pause = pause_;
  call.must = pause_ == PauseState::kPaused || call.op == EngineOp::kResume || wrote_ ||
              request_ == Request::kClose;
  call_ = std::move(call);
  return call_;
}

// The same call after a while.
EngineCall EngineDriver::again() {
  const bool look = call_.op == EngineOp::kLook;
  const std::int64_t first = look ? kFirstLookMs : kFirstWaitMs;
  pending_ = call_;
  call_ = EngineCall{.op = EngineOp::kWait};
  call_.wait_ms = std::min(look ? kLongestLookMs : kLongestWaitMs, first << std::min(tries_, 10));
  call_.must = pending_.must;
  call_.pause = pause_;
  ++tries_;
  return call_;
}

EngineCall EngineDriver::end(Status status) {
  phase_ = Phase::kEnded;
  result_.status = std::move(status);
  call_ = EngineCall{.op = EngineOp::kEnd};
  return call_;
}

void EngineDriver::remember(const Status& problem) {
  if (problem_.ok()) problem_ = problem;
}

// Nothing was written in this request. An engine that is known to be whole is resumed.
EngineCall EngineDriver::leave(const Status& problem) {
  remember(problem);
  if (told_label_ && pause_ == PauseState::kPaused) {
    return stay_paused(concat(problem_.message(), "; its label is not that of what it holds"));
  }
  if (told_label_) {
    return end(error(problem_.code(), problem_.message(),
                     "; its label is not that of what it holds, and it is left as it is"));
  }
  if (result_.known) {  // as of the newest answer
    const Held held = held_by(result_.replies);
    result_.known = held.kind == Held::kOne && same_processes(result_.replies);
    result_.identity = held.one;
  }
  if (!result_.known && !paused_running_ && pause_ == PauseState::kPaused) {
    return stay_paused(problem_.ok() ? holdings_of_ranks(result_.replies)
                                     : std::string(problem_.message()));
  }
  const bool theirs = request_ == Request::kOpen && pause_ == PauseState::kUnknown;
  if (theirs || pause_ == PauseState::kRunning) return end(problem_);
  // Nothing was written, so one that ran before this request's own pause is as it was.
  if (!result_.known && !paused_running_) {
    if (problem_.ok()) return end({});
    return end(error(problem_.code(), problem_.message(),
                     "; nobody can say what the engine holds, so it is left as it is"));
  }
  const bool staged = std::ranges::any_of(
      result_.replies, [](const RankReply& reply) { return reply.staged_version.has_value(); });
  if (first_ && !brought_ && staged) {
    result_.left_paused = pause_ == PauseState::kPaused;
    return end(error(problem_.code(), problem_.message(),
                     "; a commit of the driver before may still come, so it is left as it is"));
  }
  return label_and_resume();
}

EngineCall EngineDriver::stay_paused(const std::string& why) {
  result_.left_paused = true;
  first_ =
      first_ || wrote_;  // a commit may be on its way still: the next request drops what it takes
  return end(error(problem_.ok() ? StatusCode::kMismatch : problem_.code(), why,
                   "; the engine is left paused, because it must not serve what nobody can name: ",
                   "publish a full version, or restart it"));
}

void EngineDriver::take(const EngineAnswer& answer) {
  if (answer.paused) pause_ = PauseState::kPaused;
  if (answer.ranks.empty()) return;
  result_.replies = answer.ranks;
  const std::optional<bool> session = answer.ranks.front().session;
  if (session) {
    options_.session = std::ranges::all_of(
        answer.ranks, [](const RankReply& reply) { return reply.session.value_or(false); });
  }
}

void EngineDriver::note_time(double elapsed_ms) {
  double& spent = phase_ <= Phase::kStaged    ? result_.times.stage_ms
                  : phase_ == Phase::kPausing ? result_.times.pause_ms
                  : phase_ <= Phase::kUndone  ? result_.times.apply_ms
                                              : result_.times.resume_ms;
  spent += elapsed_ms;
  if (phase_ == Phase::kStaged || phase_ == Phase::kAhead) staging_ms_ += elapsed_ms;
}

EngineCall EngineDriver::next(const EngineAnswer& answer) {
  note_time(answer.elapsed_ms);
  if (call_.op == EngineOp::kWait && answer.status.ok()) {
    call_ = pending_;
    call_.pause = pause_;
    return call_;
  }
  if (call_.op == EngineOp::kWait) call_ = pending_;  // cut short: as if the call had failed
  take(answer);
  if (!answer.status.ok() && tries_ < kTries && is_repeated(answer)) return repeat();
  switch (phase_) {
    case Phase::kFirstAsk: return on_first_ask(answer);
    case Phase::kReopen: return answer.status.ok() ? open() : leave(answer.status);
    case Phase::kOpened: return on_opened(answer);
    case Phase::kPauseToUndo: return on_paused_to_undo(answer);
    case Phase::kBroughtTogether: return on_brought_together(answer);
    case Phase::kFirstClear: return on_first_clear(answer);
    case Phase::kPauseToClear: return on_paused_to_clear(answer);
    case Phase::kFirstResume: return on_first_resume(answer);
    case Phase::kAhead: return on_ahead(answer);
    case Phase::kStaging: return on_staging(answer);
    case Phase::kStaged: return on_staged(answer);
    case Phase::kPausing: return on_paused(answer);
    case Phase::kBeginning: return on_begun(answer);
    case Phase::kWriting: remember(answer.status); return make(Phase::kProof, EngineOp::kAsk);
    case Phase::kProof: return on_proof(answer);
    case Phase::kUndone: return on_undone(answer);
    case Phase::kFinishing: return on_finished(answer);
    case Phase::kSessionLeft: return on_session_left(answer);
    case Phase::kClearing: dirty_ = !answer.status.ok(); return resume();
    case Phase::kResuming: return on_resumed(answer);
    case Phase::kReadLabel: return on_label(answer);
    case Phase::kBeforeLabel: return correct_label(answer);
    case Phase::kSetLabel: return on_label_set(answer);
    case Phase::kLabelProof: return on_label_proof(answer);
    case Phase::kTakeLabelBack: return leave(problem_);
    case Phase::kEnded: break;
  }
  return end(error(StatusCode::kInternal, "the engine's driver was not asked for anything"));
}

// Whether a call that failed is made again: those without which the engine would stay as nobody
// wants it.
bool EngineDriver::is_repeated(const EngineAnswer& answer) const {
  switch (phase_) {
    case Phase::kPauseToUndo:
    case Phase::kBroughtTogether:
    case Phase::kFirstClear:
    case Phase::kPauseToClear:
    case Phase::kFirstResume:
    case Phase::kProof:
    case Phase::kUndone:
    case Phase::kFinishing:
    case Phase::kSessionLeft:
    case Phase::kClearing:
    case Phase::kResuming:
    case Phase::kBeforeLabel: return true;
    case Phase::kBeginning: return told_label_;
    case Phase::kReadLabel:
      return pause_ != PauseState::kRunning && answer.status.code() != StatusCode::kUnsupported;
    default: return false;
  }
}

EngineCall EngineDriver::repeat() {
  if (phase_ == Phase::kPauseToUndo) pause_ = PauseState::kUnknown;
  if (phase_ == Phase::kBeginning) labelled_.reset();
  return again();
}

// --- what the ranks hold -----------------------------------------------------------------------

EngineDriver::Held EngineDriver::held_by(const std::vector<RankReply>& replies) {
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
    const bool told = reply.state != "closed" && reply.state != "unknown";
    if (!told && holds.run.empty() && holds.digest.empty()) held.kind = Held::kUnknown;
    if (holds != held.one && held.kind == Held::kOne) held.kind = Held::kDiffer;
  }
  return held;
}

bool EngineDriver::same_processes(const std::vector<RankReply>& replies) const {
  return std::ranges::equal(replies, processes_, {}, &RankReply::process);
}

bool EngineDriver::updating() const {
  return std::ranges::any_of(result_.replies,
                             [](const RankReply& reply) { return reply.updating.value_or(false); });
}

std::optional<std::string> EngineDriver::known_digest(std::int64_t version) const {
  if (!goal_.digest_of || version < 0) return std::nullopt;
  return goal_.digest_of(static_cast<std::uint64_t>(version));
}

bool EngineDriver::is_goal(const EngineIdentity& identity) const {
  if (goal_.version == 0 || identity.version < 0) return false;
  if (static_cast<std::uint64_t>(identity.version) < goal_.version) return false;
  const std::optional<std::string> digest = known_digest(identity.version);
  return identity.run == goal_.run && digest && *digest == identity.digest;
}

bool EngineDriver::is_ahead(const EngineIdentity& identity) const {
  return goal_.version > 0 && identity.run == goal_.run && identity.version >= 0 &&
         static_cast<std::uint64_t>(identity.version) >= goal_.version &&
         !known_digest(identity.version);
}

EngineCall EngineDriver::on_first_ask(const EngineAnswer& answer) {
  if (!answer.status.ok()) {
    // What nobody knows is neither paused nor resumed.
    const bool paused = pause_ == PauseState::kPaused;
    result_.left_paused = paused;
    return end(error(answer.status.code(), answer.status.message(),
                     "; the engine does not say what it holds, so it is left ",
                     paused ? "paused" : "as it is"));
  }
  if (!same_processes(answer.ranks)) labelled_.reset();
  processes_.clear();
  for (const RankReply& reply : answer.ranks) processes_.push_back(reply.process);
  return on_opened(answer);
}

EngineCall EngineDriver::on_opened(const EngineAnswer& answer) {
  const bool asked = phase_ == Phase::kOpened;
  if (!answer.status.ok()) return leave(answer.status);
  if (!same_processes(answer.ranks)) {
    result_.known = false;
    return leave(error(StatusCode::kIncomplete, "the engine was started anew meanwhile"));
  }
  const Held held = held_by(answer.ranks);
  result_.known = held.kind == Held::kOne;
  result_.identity = held.one;
  if (asked && !all_ok(answer.ranks)) {
    return leave(error(StatusCode::kIncomplete, "the engine's workers do not follow the run: ",
                       words_of_ranks(answer.ranks)));
  }
  const bool other_run =
      !goal_.run.empty() && std::ranges::any_of(answer.ranks, [&](const RankReply& reply) {
        return reply.state != "closed" && reply.follows && *reply.follows != goal_.run;
      });
  const bool closed = any_in_state(answer.ranks, "closed");
  if (request_ == Request::kClose) return judge();
  if (Status same = check_same_run(answer.ranks); !same.ok()) {
    // Whoever follows that run may have paused it.
    return pause_ == PauseState::kPaused ? leave(same) : end(std::move(same));
  }
  if (other_run && !reopened_) {
    reopened_ = true;
    staged_already_ = false;
    return make(Phase::kReopen, EngineOp::kClose);
  }
  if (other_run) {
    return leave(error(StatusCode::kWrongRun, "the engine's workers follow run ",
                       answer.ranks.front().follows.value_or(""), ", expected ", goal_.run,
                       ": is another agent of this name on the host?"));
  }
  if ((closed || request_ == Request::kOpen) && !asked) {
    staged_already_ = staged_already_ && !closed;
    return open();
  }
  return judge();
}

// Asked before anything of theirs is closed: another agent may be following that run.
Status EngineDriver::check_same_run(const std::vector<RankReply>& replies) const {
  if (goal_.run.empty() || options_.take_over == goal_.run) return {};
  for (const RankReply& reply : replies) {
    if (reply.holds.run.empty() || reply.holds.run == goal_.run) continue;
    return error(StatusCode::kWrongRun, "rank ", reply.rank, " holds ", to_string(reply.holds),
                 ", of another run than ", goal_.run, ": set agent.take_over: ", goal_.run,
                 " to hand the engine to that run by a full version, or restart the engine; it is "
                 "left as it is");
  }
  return {};
}

EngineCall EngineDriver::open() {
  EngineCall open{.op = EngineOp::kOpen};
  open.source = options_.source;
  open.take_over = options_.take_over;
  return make(Phase::kOpened, std::move(open));
}

EngineCall EngineDriver::judge() {
  const Held held = held_by(result_.replies);
  result_.known = held.kind == Held::kOne && same_processes(result_.replies);
  result_.identity = held.one;
  // What a driver before this one has staged is dropped, so that a commit of its, on its way still,
  // finds nothing.
  const bool staged = std::ranges::any_of(
      result_.replies, [](const RankReply& reply) { return reply.staged_version.has_value(); });
  if (result_.known && first_ && staged && !brought_) return bring_together();
  if (result_.known) return tidy();
  const bool apart = held.kind == Held::kDiffer || held.kind == Held::kTorn;
  if (apart && !brought_) {
    if (pause_ == PauseState::kPaused) return bring_together();
    return make(Phase::kPauseToUndo, EngineOp::kPause);
  }
  if (request_ == Request::kUpdate) return ready();  // a whole version helps
  problem_ = error(StatusCode::kMismatch, "the ranks hold different weights (",
                   holdings_of_ranks(result_.replies), "): ", words_of_ranks(result_.replies));
  if (!apart) return end({});
  return stay_paused(std::string(problem_.message()));
}

// Ranks at two versions, as a driver that was killed in the middle leaves them: all back to the
// older one; in the middle of a take-over, to that of the run before, whatever the numbers are.
EngineCall EngineDriver::bring_together() {
  brought_ = true;
  staged_already_ = false;
  std::int64_t oldest = -1;
  const auto other = [&](const RankReply& reply) {
    return reply.holds.version >= 0 && !reply.holds.run.empty() && reply.holds.run != goal_.run;
  };
  const bool taking_over = !goal_.run.empty() && std::ranges::any_of(result_.replies, other);
  for (const RankReply& reply : result_.replies) {
    const std::int64_t version = reply.holds.version;
    if (taking_over && !other(reply)) continue;
    if (version >= 0 && (oldest < 0 || version < oldest)) oldest = version;
  }
  if (oldest < 0) return judge();
  EngineCall rollback{.op = EngineOp::kRollback};
  rollback.version = static_cast<std::uint64_t>(oldest);
  dirty_ = dirty_ || !result_.known;
  return make(Phase::kBroughtTogether, std::move(rollback));
}

EngineCall EngineDriver::on_paused_to_undo(const EngineAnswer& answer) {
  const bool paused = answer.status.ok();
  pause_ = paused ? PauseState::kPaused : PauseState::kUnknown;
  if (paused) return bring_together();
  return end(error(answer.status.code(), "the ranks hold different weights (",
                   holdings_of_ranks(result_.replies),
                   "), and the engine could not be paused: ", answer.status.message()));
}

EngineCall EngineDriver::on_brought_together(const EngineAnswer& answer) {
  if (answer.status.ok() && same_processes(answer.ranks)) return judge();
  result_.known = false;
  return leave(!answer.status.ok()
                   ? answer.status
                   : error(StatusCode::kIncomplete, "the engine was started anew meanwhile"));
}

// The ranks hold one version: what a driver before this one may have left is cleared and resumed.
EngineCall EngineDriver::tidy() {
  const bool ours = pause_ == PauseState::kPaused || dirty_;
  const bool left = first_ && request_ != Request::kOpen;
  if (left || ours || (pause_ == PauseState::kUnknown && request_ != Request::kOpen)) {
    tidying_ = true;
    return updating() ? finish() : label_and_resume();
  }
  return ready();
}

EngineCall EngineDriver::on_first_clear(const EngineAnswer& answer) {
  // With requests running it may fail: paused it should not.
  if (!answer.status.ok() && pause_ != PauseState::kPaused) {
    return make(Phase::kPauseToClear, EngineOp::kPause);
  }
  dirty_ = !answer.status.ok();
  return make(Phase::kFirstResume, EngineOp::kResume);
}

EngineCall EngineDriver::on_paused_to_clear(const EngineAnswer& answer) {
  dirty_ = !answer.status.ok();
  if (dirty_) return make(Phase::kFirstResume, EngineOp::kResume);
  pause_ = PauseState::kPaused;
  return make(Phase::kFirstClear, EngineOp::kClearCache);
}

EngineCall EngineDriver::on_first_resume(const EngineAnswer& answer) {
  if (!answer.status.ok()) return on_resumed(answer);
  pause_ = PauseState::kRunning;
  first_ = false;
  return ready();
}

EngineCall EngineDriver::ready() {
  first_ = tidying_ = false;
  if (dirty_ && pause_ != PauseState::kPaused) remember(stale_cache());
  if (request_ == Request::kClose || request_ == Request::kOpen) return end({});
  if (result_.known) before_ = result_.identity;
  result_.from_version = result_.known ? result_.identity.version : 0;
  if (result_.known && is_goal(result_.identity)) {
    reached_ = true;
    return read_label();
  }
  if (result_.known && is_ahead(result_.identity)) {
    static_cast<void>(make(Phase::kAhead, EngineOp::kAsk));
    return again();
  }
  if (staged_already_) return make(Phase::kStaged, EngineOp::kLook);
  return stage();
}

// An agent that was started anew learns of the versions that its engine has, one after the other.
EngineCall EngineDriver::on_ahead(const EngineAnswer& answer) {
  if (!answer.status.ok()) return leave(answer.status);
  if (!is_ahead(result_.identity)) return judge();
  if (staging_ms_ < static_cast<double>(options_.stage_ms)) return again();
  return leave(error(StatusCode::kIncomplete, "the engine holds ", to_string(result_.identity),
                     ", a version whose digest is not known here: nothing proves it"));
}

}  // namespace driftless
