// SPDX-License-Identifier: Apache-2.0
#include "plugin/engines/engine_driver.h"

#include <array>

#include "plugin/engines/driver_phases.h"

namespace driftless {
namespace driving {
namespace {

constexpr int kTries = 4;  // attempts of a call that must succeed

EngineCall start(DriverState& d, Request request) {
  d.request = request;
  d.result = {};
  d.problem = d.finish_problem = {};
  d.reopened = d.brought = d.tidying = d.paused_running = d.wrote = d.reached = false;
  d.must_correct_label = false;
  d.corrections = 0;
  d.before.reset();
  d.stage_attempts = 0;
  d.staging_ms = 0;
  return d.make(Phase::kFirstAsk, EngineOp::kAsk);
}

// Whether a failed call is retried: without it the engine would stay paused, or in an unknown
// state.
bool is_repeated(const DriverState& d, const EngineAnswer& answer) {
  switch (d.phase) {
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
    case Phase::kBeginning: return d.must_correct_label;
    case Phase::kReadLabel:
      return d.pause != PauseState::kRunning && answer.status.code() != StatusCode::kUnsupported;
    default: return false;
  }
}

EngineCall repeat(DriverState& d) {
  if (d.phase == Phase::kPauseToUndo) d.pause = PauseState::kUnknown;
  if (d.phase == Phase::kBeginning) d.labelled.reset();
  return d.again();
}

EngineCall next(DriverState& d, const EngineAnswer& answer) {
  d.note_time(answer.elapsed_ms);
  if (d.call.op == EngineOp::kWait && answer.status.ok()) {
    d.call = d.pending;
    d.call.pause = d.pause;
    return d.call;
  }
  // The wait was cut short: handle it as a failure of the pending call.
  if (d.call.op == EngineOp::kWait) d.call = d.pending;
  d.take(answer);
  if (!answer.status.ok() && d.tries < kTries && is_repeated(d, answer)) return repeat(d);
  switch (d.phase) {
    case Phase::kFirstAsk: return on_first_ask(d, answer);
    case Phase::kReopen: return answer.status.ok() ? open(d) : leave(d, answer.status);
    case Phase::kOpened: return on_opened(d, answer);
    case Phase::kPauseToUndo: return on_paused_to_undo(d, answer);
    case Phase::kBroughtTogether: return on_brought_together(d, answer);
    case Phase::kFirstClear: return on_first_clear(d, answer);
    case Phase::kPauseToClear: return on_paused_to_clear(d, answer);
    case Phase::kFirstResume: return on_first_resume(d, answer);
    case Phase::kAhead: return on_ahead(d, answer);
    case Phase::kStaging: return on_staging(d, answer);
    case Phase::kStaged: return on_staged(d, answer);
    case Phase::kPausing: return on_paused(d, answer);
    case Phase::kBeginning: return on_begun(d, answer);
    case Phase::kWriting: d.remember(answer.status); return d.make(Phase::kProof, EngineOp::kAsk);
    case Phase::kProof: return on_proof(d, answer);
    case Phase::kUndone: return on_undone(d, answer);
    case Phase::kFinishing: return on_finished(d, answer);
    case Phase::kSessionLeft: return on_session_left(d, answer);
    case Phase::kClearing: d.dirty = !answer.status.ok(); return resume(d);
    case Phase::kResuming: return on_resumed(d, answer);
    case Phase::kReadLabel: return on_label(d, answer);
    case Phase::kBeforeLabel: return correct_label(d, answer);
    case Phase::kSetLabel: return on_label_set(d, answer);
    case Phase::kLabelProof: return on_label_proof(d, answer);
    case Phase::kTakeLabelBack: return leave(d, d.problem);
    case Phase::kEnded: break;
  }
  return d.end(error(StatusCode::kInternal, "the engine's driver has no request under way"));
}

}  // namespace
}  // namespace driving

std::string_view to_string(EngineOp op) {
  static constexpr std::array<std::string_view, 18> kNames{
      "end",        "wait",      "status",      "look",   "open",   "close",
      "stage",      "rollback",  "pause",       "begin",  "write",  "finish",
      "read_label", "set_label", "clear_cache", "resume", "shares", "read"};
  return kNames.at(static_cast<std::size_t>(op));
}

EngineCall EngineDriver::begin_open(std::string run) {
  state_.goal = {};
  state_.goal.run = std::move(run);
  state_.staged_already = false;
  return driving::start(state_, driving::Request::kOpen);
}

EngineCall EngineDriver::begin_staging(std::int64_t stage_ms) {
  state_.options.stage_ms = stage_ms;
  state_.goal = {};
  static_cast<void>(driving::start(state_, driving::Request::kStaging));
  state_.processes.clear();  // the processes are not known when staging begins
  return driving::stage(state_);
}

EngineCall EngineDriver::begin_wait_staged(std::int64_t stage_ms) {
  state_.options.stage_ms = stage_ms;
  state_.goal = {};
  static_cast<void>(driving::start(state_, driving::Request::kWaitStaged));
  return state_.make(driving::Phase::kStaged, EngineOp::kLook);
}

EngineCall EngineDriver::begin_update(EngineGoal goal, bool staged) {
  state_.goal = std::move(goal);
  state_.staged_already = staged;
  return driving::start(state_, driving::Request::kUpdate);
}

EngineCall EngineDriver::begin_close() {
  state_.goal = {};
  state_.staged_already = false;
  const EngineCall ask = driving::start(state_, driving::Request::kClose);
  const bool ours = state_.pause == PauseState::kPaused ||
                    (state_.pause == PauseState::kUnknown && !state_.first);
  return ours ? ask : state_.end({});
}

EngineCall EngineDriver::next(const EngineAnswer& answer) { return driving::next(state_, answer); }

}  // namespace driftless
