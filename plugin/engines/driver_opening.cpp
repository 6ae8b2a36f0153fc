// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "plugin/engines/driver_phases.h"

namespace driftless::driving {
namespace {

Status check_same_run(const DriverState& d, const std::vector<RankReply>& replies);
EngineCall judge(DriverState& d);
EngineCall bring_together(DriverState& d);
EngineCall tidy(DriverState& d);
EngineCall ready(DriverState& d);

}  // namespace

EngineCall on_first_ask(DriverState& d, const EngineAnswer& answer) {
  if (!answer.status.ok()) {
    // The engine's weights are unknown: neither pause nor resume it.
    const bool paused = d.pause == PauseState::kPaused;
    d.result.left_paused = paused;
    return d.end(error(answer.status.code(), answer.status.message(),
                       "; the engine does not report what it holds, so it is left ",
                       paused ? "paused" : "as it is"));
  }
  if (!d.same_processes(answer.ranks)) d.labelled.reset();
  d.processes.clear();
  for (const RankReply& reply : answer.ranks) d.processes.push_back(reply.process);
  return on_opened(d, answer);
}

EngineCall on_opened(DriverState& d, const EngineAnswer& answer) {
  const bool asked = d.phase == Phase::kOpened;
  if (!answer.status.ok()) return leave(d, answer.status);
  if (!d.same_processes(answer.ranks)) {
    d.result.known = false;
    return leave(d, error(StatusCode::kIncomplete, "the engine was started anew meanwhile"));
  }
  const Held held = held_by(answer.ranks);
  d.result.known = held.kind == Held::kOne;
  d.result.identity = held.one;
  if (asked && !all_ok(answer.ranks)) {
    return leave(d, error(StatusCode::kIncomplete, "the engine's workers do not follow the run: ",
                          words_of_ranks(answer.ranks)));
  }
  const bool other_run =
      !d.goal.run.empty() && std::ranges::any_of(answer.ranks, [&](const RankReply& reply) {
        return reply.state != "closed" && reply.follows && *reply.follows != d.goal.run;
      });
  const bool closed = any_in_state(answer.ranks, "closed");
  if (d.request == Request::kClose) return judge(d);
  if (Status same = check_same_run(d, answer.ranks); !same.ok()) {
    // The driver of that run may have paused the engine.
    return d.pause == PauseState::kPaused ? leave(d, same) : d.end(std::move(same));
  }
  if (other_run && !d.reopened) {
    d.reopened = true;
    d.staged_already = false;
    return d.make(Phase::kReopen, EngineOp::kClose);
  }
  if (other_run) {
    return leave(d, error(StatusCode::kWrongRun, "the engine's workers follow run ",
                          answer.ranks.front().follows.value_or(""), ", expected ", d.goal.run,
                          ": is another agent of this name on the host?"));
  }
  if ((closed || d.request == Request::kOpen) && !asked) {
    d.staged_already = d.staged_already && !closed;
    return open(d);
  }
  return judge(d);
}

namespace {

// Called before the driver closes any receiver: another agent may be following that run.
Status check_same_run(const DriverState& d, const std::vector<RankReply>& replies) {
  if (d.goal.run.empty() || d.options.take_over == d.goal.run) return {};
  for (const RankReply& reply : replies) {
    if (reply.holds.run.empty() || reply.holds.run == d.goal.run) continue;
    return error(StatusCode::kWrongRun, "rank ", reply.rank, " holds ", to_string(reply.holds),
                 ", of another run than ", d.goal.run, ": set agent.take_over: ", d.goal.run,
                 " to hand the engine to that run by a full version, or restart the engine; it is "
                 "left as it is");
  }
  return {};
}

}  // namespace

EngineCall open(DriverState& d) {
  EngineCall open{.op = EngineOp::kOpen};
  open.source = d.options.source;
  open.take_over = d.options.take_over;
  return d.make(Phase::kOpened, std::move(open));
}

namespace {

EngineCall judge(DriverState& d) {
  const Held held = held_by(d.result.replies);
  d.result.known = held.kind == Held::kOne && d.same_processes(d.result.replies);
  d.result.identity = held.one;
  // A version that an earlier driver staged is dropped, so that a late commit of that driver finds
  // nothing to commit.
  const bool staged = std::ranges::any_of(
      d.result.replies, [](const RankReply& reply) { return reply.staged_version.has_value(); });
  if (d.result.known && d.first && staged && !d.brought) return bring_together(d);
  if (d.result.known) return tidy(d);
  const bool apart = held.kind == Held::kDiffer || held.kind == Held::kTorn;
  if (apart && !d.brought) {
    if (d.pause == PauseState::kPaused) return bring_together(d);
    return d.make(Phase::kPauseToUndo, EngineOp::kPause);
  }
  if (d.request == Request::kUpdate) return ready(d);  // a full version repairs this
  d.problem = error(StatusCode::kMismatch, "the ranks hold different weights (",
                    holdings_of_ranks(d.result.replies), "): ", words_of_ranks(d.result.replies));
  if (!apart) return d.end({});
  return d.stay_paused(std::string(d.problem.message()));
}

// The ranks hold two versions, because an earlier driver was killed during a commit: roll all back
// to the older one. During a take-over, roll all back to the previous run's version, whatever its
// number.
EngineCall bring_together(DriverState& d) {
  d.brought = true;
  d.staged_already = false;
  std::int64_t oldest = -1;
  const auto other = [&](const RankReply& reply) {
    return reply.holds.version >= 0 && !reply.holds.run.empty() && reply.holds.run != d.goal.run;
  };
  const bool taking_over = !d.goal.run.empty() && std::ranges::any_of(d.result.replies, other);
  for (const RankReply& reply : d.result.replies) {
    const std::int64_t version = reply.holds.version;
    if (taking_over && !other(reply)) continue;
    if (version >= 0 && (oldest < 0 || version < oldest)) oldest = version;
  }
  if (oldest < 0) return judge(d);
  EngineCall rollback{.op = EngineOp::kRollback};
  rollback.version = static_cast<std::uint64_t>(oldest);
  d.dirty = d.dirty || !d.result.known;
  return d.make(Phase::kBroughtTogether, std::move(rollback));
}

}  // namespace

EngineCall on_paused_to_undo(DriverState& d, const EngineAnswer& answer) {
  const bool paused = answer.status.ok();
  d.pause = paused ? PauseState::kPaused : PauseState::kUnknown;
  if (paused) return bring_together(d);
  return d.end(error(answer.status.code(), "the ranks hold different weights (",
                     holdings_of_ranks(d.result.replies),
                     "), and the engine could not be paused: ", answer.status.message()));
}

EngineCall on_brought_together(DriverState& d, const EngineAnswer& answer) {
  if (answer.status.ok() && d.same_processes(answer.ranks)) return judge(d);
  d.result.known = false;
  return leave(d, !answer.status.ok()
                      ? answer.status
                      : error(StatusCode::kIncomplete, "the engine was started anew meanwhile"));
}

namespace {

// The ranks hold one version: clear what an earlier driver may have left, and resume the engine.
EngineCall tidy(DriverState& d) {
  const bool ours = d.pause == PauseState::kPaused || d.dirty;
  const bool left = d.first && d.request != Request::kOpen;
  if (left || ours || (d.pause == PauseState::kUnknown && d.request != Request::kOpen)) {
    d.tidying = true;
    return d.updating() ? finish(d) : label_and_resume(d);
  }
  return ready(d);
}

}  // namespace

EngineCall on_first_clear(DriverState& d, const EngineAnswer& answer) {
  // The flush may fail while requests run, but not on a paused engine.
  if (!answer.status.ok() && d.pause != PauseState::kPaused) {
    return d.make(Phase::kPauseToClear, EngineOp::kPause);
  }
  d.dirty = !answer.status.ok();
  return d.make(Phase::kFirstResume, EngineOp::kResume);
}

EngineCall on_paused_to_clear(DriverState& d, const EngineAnswer& answer) {
  d.dirty = !answer.status.ok();
  if (d.dirty) return d.make(Phase::kFirstResume, EngineOp::kResume);
  d.pause = PauseState::kPaused;
  return d.make(Phase::kFirstClear, EngineOp::kClearCache);
}

EngineCall on_first_resume(DriverState& d, const EngineAnswer& answer) {
  if (!answer.status.ok()) return on_resumed(d, answer);
  d.pause = PauseState::kRunning;
  d.first = false;
  return ready(d);
}

namespace {

EngineCall ready(DriverState& d) {
  d.first = d.tidying = false;
  if (d.dirty && d.pause != PauseState::kPaused) d.remember(stale_cache());
  if (d.request == Request::kClose || d.request == Request::kOpen) return d.end({});
  if (d.result.known) d.before = d.result.identity;
  d.result.from_version = d.result.known ? d.result.identity.version : 0;
  if (d.result.known && d.is_goal(d.result.identity)) {
    d.reached = true;
    return read_label(d);
  }
  if (d.result.known && d.is_ahead(d.result.identity)) {
    static_cast<void>(d.make(Phase::kAhead, EngineOp::kAsk));
    return d.again();
  }
  if (d.staged_already) return d.make(Phase::kStaged, EngineOp::kLook);
  return stage(d);
}

}  // namespace

// The engine holds a version whose digest is not known here. A restarted agent reads the versions
// one after the other, so wait until it has read this one.
EngineCall on_ahead(DriverState& d, const EngineAnswer& answer) {
  if (!answer.status.ok()) return leave(d, answer.status);
  if (!d.is_ahead(d.result.identity)) return judge(d);
  if (d.staging_ms < static_cast<double>(d.options.stage_ms)) return d.again();
  return leave(d, error(StatusCode::kIncomplete, "the engine holds ", to_string(d.result.identity),
                        ", a version whose digest is not known here: nothing proves it"));
}

}  // namespace driftless::driving
