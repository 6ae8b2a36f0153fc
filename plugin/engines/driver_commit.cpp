// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "plugin/engines/driver_phases.h"

namespace driftless::driving {
namespace {

constexpr int kStageAttempts = 5;
constexpr double kStageGraceMs = 30'000;  // the ranks' own deadline expires first

std::string staged_of_ranks(const std::vector<RankReply>& replies) {
  std::string words;
  for (const RankReply& reply : replies) {
    words += concat(words.empty() ? "" : ", ",
                    reply.staged_version ? std::to_string(*reply.staged_version) : "none");
    if (!reply.waits.empty()) words += concat(" (", reply.waits, ")");
  }
  return words;
}

EngineCall judge_staged(DriverState& d);
EngineCall write(DriverState& d);
bool is_staged_version(const DriverState& d, const Held& held);

}  // namespace

EngineCall stage(DriverState& d) {
  EngineCall stage{.op = EngineOp::kStage};
  stage.timeout_s = static_cast<double>(d.options.stage_ms) / 1e3;
  stage.ticket = concat(d.options.ticket, "-", ++d.stagings);
  ++d.stage_attempts;
  return d.make(Phase::kStaging, std::move(stage));
}

EngineCall on_staging(DriverState& d, const EngineAnswer& answer) {
  if (!answer.status.ok()) return leave(d, answer.status);
  if (d.processes.empty()) {
    for (const RankReply& reply : answer.ranks) d.processes.push_back(reply.process);
  }
  if (!all_ok(answer.ranks)) {
    return leave(
        d, error(StatusCode::kIncomplete, "staging did not begin: ", words_of_ranks(answer.ranks)));
  }
  if (d.request == Request::kStaging) return d.end({});
  return d.make(Phase::kStaged, EngineOp::kLook);
}

EngineCall on_staged(DriverState& d, const EngineAnswer& answer) {
  if (!answer.status.ok()) return leave(d, answer.status);
  if (!d.same_processes(answer.ranks)) {
    d.result.known = false;
    return leave(d, error(StatusCode::kIncomplete, "the engine was started anew while it staged"));
  }
  if (any_in_state(answer.ranks, "staging")) {
    if (d.staging_ms < static_cast<double>(d.options.stage_ms) + kStageGraceMs) return d.again();
    return leave(d, error(StatusCode::kDeadlineExceeded, "ranks are still staging after ",
                          d.staging_ms, " ms"));
  }
  if (!all_ok(answer.ranks)) {
    return leave(d,
                 error(StatusCode::kIncomplete, "staging failed: ", words_of_ranks(answer.ranks)));
  }
  return judge_staged(d);
}

namespace {

EngineCall judge_staged(DriverState& d) {
  const std::vector<RankReply>& replies = d.result.replies;
  const std::optional<std::uint64_t> first = replies.front().staged_version;
  const bool same = std::ranges::all_of(
      replies, [&](const RankReply& reply) { return reply.staged_version == first; });
  const bool nothing = same && !first && d.goal.version == 0;
  // A goal that cannot be reached at once is reached in steps: after the last attempt an older
  // version will do, and the next request goes on from there.
  const bool good =
      same && first && (*first >= d.goal.version || d.stage_attempts == kStageAttempts);
  if (nothing || good) d.result.staged = first;
  if (d.request == Request::kWaitStaged && (nothing || good)) return d.end({});
  if (nothing) return leave(d, {});
  if (good) {
    d.staged = *first;
    d.paused_running = d.pause == PauseState::kRunning;
    return d.make(Phase::kPausing, EngineOp::kPause);
  }
  // The ranks staged different versions, perhaps because the publisher was faster than some of
  // them: stage again.
  if (d.stage_attempts < kStageAttempts) return stage(d);
  return leave(d, error(StatusCode::kIncomplete, "the ranks did not stage the same version",
                        d.goal.version > 0 ? concat(", at least ", d.goal.version) : std::string(),
                        ": they have ", staged_of_ranks(replies)));
}

}  // namespace

EngineCall on_paused(DriverState& d, const EngineAnswer& answer) {
  if (!answer.status.ok()) {
    if (d.pause == PauseState::kRunning) d.pause = PauseState::kUnknown;
    return leave(d, answer.status.with_context("the engine was not paused"));
  }
  d.pause = PauseState::kPaused;
  if (d.options.session) return d.make(Phase::kBeginning, EngineOp::kBegin);
  return write(d);
}

EngineCall on_begun(DriverState& d, const EngineAnswer& answer) {
  d.labelled.reset();  // until a finish of this driver ends the session
  d.refused = answer.refused;
  if (!answer.status.ok()) {
    d.remember(answer.status.with_context("its update did not begin"));
    return d.make(Phase::kSessionLeft, EngineOp::kAsk);  // it may have begun nevertheless
  }
  return d.must_correct_label ? d.make(Phase::kProof, EngineOp::kAsk) : write(d);
}

namespace {

EngineCall write(DriverState& d) {
  d.wrote = d.dirty = true;
  EngineCall write{.op = EngineOp::kWrite};
  write.version = d.staged;
  write.ticket = concat(d.options.ticket, "-", d.stagings);
  return d.make(Phase::kWriting, std::move(write));
}

bool is_staged_version(const DriverState& d, const Held& held) {
  if (held.kind != Held::kOne) return false;
  if (held.one.version != static_cast<std::int64_t>(d.staged)) return false;
  if (!d.goal.run.empty() && held.one.run != d.goal.run) return false;
  const std::optional<std::string> digest = d.known_digest(held.one.version);
  return !digest || held.one.digest.empty() || *digest == held.one.digest;
}

}  // namespace

EngineCall on_proof(DriverState& d, const EngineAnswer& answer) {
  const Held held = held_by(answer.ranks);
  const bool here = answer.status.ok() && d.same_processes(answer.ranks);
  if (d.must_correct_label) return d.holds_still(answer) ? finish(d) : label_not_proven(d, answer);
  if (here && is_staged_version(d, held)) {
    d.reached = d.result.updated = d.result.known = true;
    d.result.identity = held.one;
    d.problem = {};
    return finish(d);
  }
  const bool words = std::ranges::any_of(
      answer.ranks, [](const RankReply& reply) { return !reply.error.empty(); });
  std::string why(answer.status.message());
  if (answer.status.ok() && (words || d.problem.ok())) why = words_of_ranks(answer.ranks);
  if (!d.problem.ok()) why += concat(why.empty() ? "" : "; ", d.problem.message());
  d.problem = error(StatusCode::kIncomplete, "version ", d.staged, " was refused: ", why);
  EngineCall rollback{.op = EngineOp::kRollback};
  rollback.version = d.before ? static_cast<std::uint64_t>(d.before->version) : 0;
  return d.make(Phase::kUndone, std::move(rollback));
}

EngineCall on_undone(DriverState& d, const EngineAnswer& answer) {
  const Held held = held_by(answer.ranks);
  const bool here = answer.status.ok() && d.same_processes(answer.ranks);
  const bool back = here && held.kind == Held::kOne && (!d.before || held.one == *d.before);
  d.result.known = back;
  if (back) {
    d.result.identity = held.one;
    d.problem = error(d.problem.code(), d.problem.message(), "; all ranks hold ",
                      to_string(held.one), " again");
    return finish(d);
  }
  const bool anew = answer.status.ok() && !here;
  return d.stay_paused(concat(d.problem.message(), "; and taking it back failed: ",
                              !answer.status.ok() ? std::string(answer.status.message())
                              : anew ? std::string("the engine was started anew meanwhile")
                                     : holdings_of_ranks(answer.ranks)));
}

EngineCall finish(DriverState& d) {
  if (!d.options.session) return label_and_resume(d);
  EngineCall finish{.op = EngineOp::kFinish};
  if (d.reached || d.must_correct_label) {
    finish.label = d.wanted_label();
  }
  return d.make(Phase::kFinishing, std::move(finish));
}

EngineCall on_finished(DriverState& d, const EngineAnswer& answer) {
  d.finish_problem = answer.status;
  if (answer.unfinished) {
    d.remember(answer.status);
    return d.stay_paused(concat(d.problem.message(), "; its update was not finished"));
  }
  if (!answer.status.ok()) return d.make(Phase::kSessionLeft, EngineOp::kAsk);
  if (d.reached && !d.must_correct_label) d.labelled = d.result.identity;
  return label_and_resume(d);
}

// After a failed begin or finish. A session that is still open would take the label of any finish
// that arrives late, and the engine would not do its work at the session's end.
EngineCall on_session_left(DriverState& d, const EngineAnswer& answer) {
  const bool tried = !d.finish_problem.ok();
  // The session did not begin, the ranks do not answer, and nothing was written: the engine
  // continues with what it held.
  if (!answer.status.ok() && d.refused && !tried && !d.wrote) return leave(d, d.problem);
  const Status unfinished = d.finish_problem.with_context("its update was not finished");
  if (!d.holds_still(answer)) {
    d.must_correct_label = true;
    if (!answer.status.ok()) d.remember(unfinished);
    return label_not_proven(d, answer);
  }
  if (d.updating() && !tried) return finish(d);
  if (d.updating()) {
    d.remember(unfinished);
    return d.stay_paused(std::string(d.problem.message()));
  }
  return tried ? label_and_resume(d) : leave(d, d.problem);
}

}  // namespace driftless::driving
