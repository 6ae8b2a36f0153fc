// SPDX-License-Identifier: Apache-2.0
// The driver's second half: staging, the commit, the label.
#include <algorithm>
#include <utility>

#include "plugin/engines/engine_driver.h"

namespace driftless {
namespace {

constexpr int kStageAttempts = 5, kCorrections = 2;
constexpr double kStageGraceMs = 30'000;  // the ranks' own deadline comes first
constexpr std::string_view kUnprovenLabel = "unproven";

std::string staged_of_ranks(const std::vector<RankReply>& replies) {
  std::string words;
  for (const RankReply& reply : replies) {
    words += concat(words.empty() ? "" : ", ",
                    reply.staged_version ? std::to_string(*reply.staged_version) : "none");
    if (!reply.waits.empty()) words += concat(" (", reply.waits, ")");
  }
  return words;
}

}  // namespace

// --- staging -----------------------------------------------------------------------------------

EngineCall EngineDriver::stage() {
  EngineCall stage{.op = EngineOp::kStage};
  stage.timeout_s = static_cast<double>(options_.stage_ms) / 1e3;
  stage.ticket = concat(options_.ticket, "-", ++stagings_);
  ++stage_attempts_;
  return make(Phase::kStaging, std::move(stage));
}

EngineCall EngineDriver::on_staging(const EngineAnswer& answer) {
  if (!answer.status.ok()) return leave(answer.status);
  if (processes_.empty()) {
    for (const RankReply& reply : answer.ranks) processes_.push_back(reply.process);
  }
  if (!all_ok(answer.ranks)) {
    return leave(
        error(StatusCode::kIncomplete, "staging did not begin: ", words_of_ranks(answer.ranks)));
  }
  if (request_ == Request::kStaging) return end({});
  return make(Phase::kStaged, EngineOp::kLook);
}

EngineCall EngineDriver::on_staged(const EngineAnswer& answer) {
  if (!answer.status.ok()) return leave(answer.status);
  if (!same_processes(answer.ranks)) {
    result_.known = false;
    return leave(error(StatusCode::kIncomplete, "the engine was started anew while it staged"));
  }
  if (any_in_state(answer.ranks, "staging")) {
    if (staging_ms_ < static_cast<double>(options_.stage_ms) + kStageGraceMs) return again();
    return leave(
        error(StatusCode::kDeadlineExceeded, "ranks are still staging after ", staging_ms_, " ms"));
  }
  if (!all_ok(answer.ranks)) {
    return leave(error(StatusCode::kIncomplete, "staging failed: ", words_of_ranks(answer.ranks)));
  }
  return judge_staged();
}

EngineCall EngineDriver::judge_staged() {
  const std::vector<RankReply>& replies = result_.replies;
  const std::optional<std::uint64_t> first = replies.front().staged_version;
  const bool same = std::ranges::all_of(
      replies, [&](const RankReply& reply) { return reply.staged_version == first; });
  const bool nothing = same && !first && goal_.version == 0;
  // What cannot be had at once is had in steps: the goal is the next request's.
  const bool good = same && first && (*first >= goal_.version || stage_attempts_ == kStageAttempts);
  if (nothing || good) result_.staged = first;
  if (request_ == Request::kWaitStaged && (nothing || good)) return end({});
  if (nothing) return leave({});
  if (good) {
    staged_ = *first;
    paused_running_ = pause_ == PauseState::kRunning;
    return make(Phase::kPausing, EngineOp::kPause);
  }
  // The publisher may have been faster than some of them: they look again.
  if (stage_attempts_ < kStageAttempts) return stage();
  return leave(error(StatusCode::kIncomplete, "the ranks did not stage the same version",
                     goal_.version > 0 ? concat(", at least ", goal_.version) : std::string(),
                     ": they have ", staged_of_ranks(replies)));
}

// --- the commit --------------------------------------------------------------------------------

EngineCall EngineDriver::on_paused(const EngineAnswer& answer) {
  if (!answer.status.ok()) {
    if (pause_ == PauseState::kRunning) pause_ = PauseState::kUnknown;
    return leave(answer.status.with_context("the engine was not paused"));
  }
  pause_ = PauseState::kPaused;
  if (options_.session) return make(Phase::kBeginning, EngineOp::kBegin);
  return write();
}

EngineCall EngineDriver::on_begun(const EngineAnswer& answer) {
  labelled_.reset();  // until this session is known to have ended by our own finish
  refused_ = answer.refused;
  if (!answer.status.ok()) {
    remember(answer.status.with_context("its update did not begin"));
    return make(Phase::kSessionLeft, EngineOp::kAsk);  // or it did
  }
  return told_label_ ? make(Phase::kProof, EngineOp::kAsk) : write();
}

EngineCall EngineDriver::write() {
  wrote_ = dirty_ = true;
  EngineCall write{.op = EngineOp::kWrite};
  write.version = staged_;
  write.ticket = concat(options_.ticket, "-", stagings_);
  return make(Phase::kWriting, std::move(write));
}

bool EngineDriver::is_staged_version(const Held& held) const {
  if (held.kind != Held::kOne) return false;
  if (held.one.version != static_cast<std::int64_t>(staged_)) return false;
  if (!goal_.run.empty() && held.one.run != goal_.run) return false;
  const std::optional<std::string> digest = known_digest(held.one.version);
  return !digest || held.one.digest.empty() || *digest == held.one.digest;
}

EngineCall EngineDriver::on_proof(const EngineAnswer& answer) {
  const Held held = held_by(answer.ranks);
  const bool here = answer.status.ok() && same_processes(answer.ranks);
  if (told_label_) return holds_still(answer) ? finish() : label_not_proven(answer);
  if (here && is_staged_version(held)) {
    reached_ = result_.updated = result_.known = true;
    result_.identity = held.one;
    problem_ = {};
    return finish();
  }
  const bool words = std::ranges::any_of(
      answer.ranks, [](const RankReply& reply) { return !reply.error.empty(); });
  std::string why(answer.status.message());
  if (answer.status.ok() && (words || problem_.ok())) why = words_of_ranks(answer.ranks);
  if (!problem_.ok()) why += concat(why.empty() ? "" : "; ", problem_.message());
  problem_ = error(StatusCode::kIncomplete, "version ", staged_, " was refused: ", why);
  EngineCall rollback{.op = EngineOp::kRollback};
  rollback.version = before_ ? static_cast<std::uint64_t>(before_->version) : 0;
  return make(Phase::kUndone, std::move(rollback));
}

EngineCall EngineDriver::on_undone(const EngineAnswer& answer) {
  const Held held = held_by(answer.ranks);
  const bool here = answer.status.ok() && same_processes(answer.ranks);
  const bool back = here && held.kind == Held::kOne && (!before_ || held.one == *before_);
  result_.known = back;
  if (back) {
    result_.identity = held.one;
    problem_ = error(problem_.code(), problem_.message(), "; all ranks hold ", to_string(held.one),
                     " again");
    return finish();
  }
  const bool anew = answer.status.ok() && !here;
  return stay_paused(concat(problem_.message(), "; and taking it back failed: ",
                            !answer.status.ok() ? std::string(answer.status.message())
                            : anew ? std::string("the engine was started anew meanwhile")
                                   : holdings_of_ranks(answer.ranks)));
}

EngineCall EngineDriver::finish() {
  if (!options_.session) return label_and_resume();
  EngineCall finish{.op = EngineOp::kFinish};
  if (reached_ || told_label_) {
    finish.label = wanted_label();
  }
  return make(Phase::kFinishing, std::move(finish));
}

EngineCall EngineDriver::on_finished(const EngineAnswer& answer) {
  finish_problem_ = answer.status;
  if (answer.unfinished) {
    remember(answer.status);
    return stay_paused(concat(problem_.message(), "; its update was not finished"));
  }
  if (!answer.status.ok()) return make(Phase::kSessionLeft, EngineOp::kAsk);
  if (reached_ && !told_label_) labelled_ = result_.identity;
  return label_and_resume();
}

// After a begin or a finish that failed: a session that is left open would take the label of any
// finish that is on its way still, and may keep the engine from what it does at its end.
EngineCall EngineDriver::on_session_left(const EngineAnswer& answer) {
  const bool tried = !finish_problem_.ok();
  // It did not begin, nobody can be asked, and nothing was written: what ran before goes on.
  if (!answer.status.ok() && refused_ && !tried && !wrote_) return leave(problem_);
  const Status unfinished = finish_problem_.with_context("its update was not finished");
  if (!holds_still(answer)) {
    told_label_ = true;
    if (!answer.status.ok()) remember(unfinished);
    return label_not_proven(answer);
  }
  if (updating() && !tried) return finish();
  if (updating()) {
    remember(unfinished);
    return stay_paused(std::string(problem_.message()));
  }
  return tried ? label_and_resume() : leave(problem_);
}

// The ranks hold one version: before the engine serves it, its label tells so.
EngineCall EngineDriver::label_and_resume() {
  if (!result_.known || labelled_ == result_.identity) return go_on();
  return read_label();
}

EngineCall EngineDriver::go_on() {
  told_label_ = false;
  if (tidying_) return make(Phase::kFirstClear, EngineOp::kClearCache);
  return first_ || dirty_ ? clear() : resume();
}

Status EngineDriver::stale_cache() {
  return error(StatusCode::kBusy,
               "the prefix cache was not cleared and holds what the old weights made");
}

EngineCall EngineDriver::clear() { return make(Phase::kClearing, EngineOp::kClearCache); }

EngineCall EngineDriver::resume() { return make(Phase::kResuming, EngineOp::kResume); }

EngineCall EngineDriver::on_resumed(const EngineAnswer& answer) {
  first_ = false;
  pause_ = answer.status.ok() ? PauseState::kRunning : PauseState::kUnknown;
  if (!answer.status.ok()) {
    result_.left_paused = true;
    return end(error(answer.status.code(), problem_.message(), problem_.ok() ? "" : "; ",
                     "the engine was not resumed and is left paused, though its ranks hold ",
                     to_string(result_.identity), ": ", answer.status.message()));
  }
  if (wrote_ && dirty_) remember(stale_cache());
  if (!reached_) {
    remember(finish_problem_.with_context("its update was not finished"));
    return end(problem_);
  }
  return read_label();
}

// --- the label ---------------------------------------------------------------------------------

// Of an engine that serves, to end with; of any other, before it is resumed.
EngineCall EngineDriver::read_label() { return make(Phase::kReadLabel, EngineOp::kReadLabel); }

std::string EngineDriver::wanted_label() const {
  const EngineIdentity& held = result_.identity;
  return held.run.empty() ? std::string(kUnprovenLabel) : std::to_string(held.version);
}

// A late finish of a driver before this one may have named a base after a version.
bool EngineDriver::label_fits(const std::string& label) const {
  if (!result_.identity.run.empty()) return label == wanted_label();
  return label.empty() || label == "0" ||
         label.find_first_not_of("0123456789") != std::string::npos;
}

EngineCall EngineDriver::on_label(const EngineAnswer& answer) {
  const bool serves = pause_ == PauseState::kRunning && !tidying_;
  const bool none = answer.status.code() == StatusCode::kUnsupported;  // it keeps no label
  if (!answer.status.ok() && !none) {
    if (serves) remember(finish_problem_);
    remember(answer.status);
    told_label_ = !serves;  // nobody knows it, so that nothing is resumed
    return serves ? end(problem_) : leave(problem_);
  }
  const std::string wanted = wanted_label();
  if (none) remember(finish_problem_.with_context("its update was not finished"));
  if (none || label_fits(answer.label)) {
    labelled_ = result_.identity;
    return serves ? end(problem_) : go_on();
  }
  if (std::exchange(told_label_, true) || corrections_++ == kCorrections) {
    return leave(error(StatusCode::kMismatch, "says that it serves version ", shown(answer.label),
                       ", expected ", wanted));
  }
  return make(Phase::kBeforeLabel, EngineOp::kAsk);
}

// In a session, if the engine has them: a server that was started anew has none, and refuses. None
// is begun in another process than the one that holds the version: a finish of before, on its way
// still, would name that after it.
EngineCall EngineDriver::correct_label(const EngineAnswer& answer) {
  if (!holds_still(answer)) return label_not_proven(answer);
  if (!options_.session) {
    EngineCall set{.op = EngineOp::kSetLabel};
    set.label = wanted_label();
    return make(Phase::kSetLabel, std::move(set));
  }
  if (pause_ == PauseState::kPaused) return make(Phase::kBeginning, EngineOp::kBegin);
  return make(Phase::kPausing, EngineOp::kPause);
}

bool EngineDriver::holds_still(const EngineAnswer& answer) const {
  const Held held = held_by(answer.ranks);
  return answer.status.ok() && same_processes(answer.ranks) && held.kind == Held::kOne &&
         held.one == result_.identity;
}

EngineCall EngineDriver::label_not_proven(const EngineAnswer& answer) {
  result_.known = reached_ = result_.updated = false;
  paused_running_ = false;
  return leave(error(StatusCode::kIncomplete, "the engine was started anew, or does not answer (",
                     answer.status.message(), "): its label is not proven"));
}

EngineCall EngineDriver::on_label_set(const EngineAnswer& answer) {
  if (!answer.status.ok() && answer.status.code() != StatusCode::kUnsupported) {
    remember(answer.status.with_context("its label was not set"));
  }
  return make(Phase::kLabelProof, EngineOp::kAsk);
}

// A server that was started anew in between has got a label that is not its own.
EngineCall EngineDriver::on_label_proof(const EngineAnswer& answer) {
  if (holds_still(answer)) return read_label();
  result_.known = result_.updated = false;
  remember(error(StatusCode::kIncomplete, "the engine was started anew, or does not answer (",
                 answer.status.message(), "): its label is not proven"));
  EngineCall set{.op = EngineOp::kSetLabel};
  set.label = kUnprovenLabel;
  return make(Phase::kTakeLabelBack, std::move(set));
}

std::string EngineDriver::fingerprint() const {
  std::string text =
      concat(static_cast<int>(request_), "/", static_cast<int>(phase_), "/", to_string(call_.op),
             "/", to_string(pending_.op), "/", call_.version, "/", static_cast<int>(pause_), "/",
             tries_, "/", stage_attempts_, "/", corrections_, "/", staged_, "/", stagings_);
  for (const bool flag : {first_, dirty_, reopened_, brought_, tidying_, paused_running_,
                          staged_already_, wrote_, reached_, told_label_, refused_, result_.known,
                          result_.updated, problem_.ok(), finish_problem_.ok(), options_.session}) {
    text += flag ? '1' : '0';
  }
  for (const std::string& process : processes_) text += concat("/", process);
  for (const auto& known : {before_, labelled_}) {
    text += concat("/", known ? to_string(*known) : "");
  }
  text += concat("/", to_string(result_.identity), "/", goal_.run, "/", goal_.version);
  return text;
}

}  // namespace driftless
