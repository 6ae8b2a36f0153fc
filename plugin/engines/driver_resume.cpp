// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "plugin/engines/driver_phases.h"

namespace driftless::driving {
namespace {

constexpr int kCorrections = 2;  // label corrections in one request

EngineCall go_on(DriverState& d);
EngineCall clear(DriverState& d);
bool label_fits(const DriverState& d, const std::string& label);

}  // namespace

// Ends a request that wrote nothing. Resumes the engine if its ranks are known to hold one version.
EngineCall leave(DriverState& d, const Status& problem) {
  d.remember(problem);
  if (d.must_correct_label && d.pause == PauseState::kPaused) {
    return d.stay_paused(concat(d.problem.message(), "; its label is wrong or unknown"));
  }
  if (d.must_correct_label) {
    return d.end(error(d.problem.code(), d.problem.message(),
                       "; its label is wrong or unknown, and it is left as it is"));
  }
  if (d.result.known) {  // judged by the newest replies
    const Held held = held_by(d.result.replies);
    d.result.known = held.kind == Held::kOne && d.same_processes(d.result.replies);
    d.result.identity = held.one;
  }
  if (!d.result.known && !d.paused_running && d.pause == PauseState::kPaused) {
    return d.stay_paused(d.problem.ok() ? holdings_of_ranks(d.result.replies)
                                        : std::string(d.problem.message()));
  }
  const bool theirs = d.request == Request::kOpen && d.pause == PauseState::kUnknown;
  if (theirs || d.pause == PauseState::kRunning) return d.end(d.problem);
  // Nothing was written, so an engine that ran until this request paused it is unchanged.
  if (!d.result.known && !d.paused_running) {
    if (d.problem.ok()) return d.end({});
    return d.end(error(d.problem.code(), d.problem.message(),
                       "; it is unknown what the engine holds, so it is left as it is"));
  }
  const bool staged = std::ranges::any_of(
      d.result.replies, [](const RankReply& reply) { return reply.staged_version.has_value(); });
  if (d.first && !d.brought && staged) {
    d.result.left_paused = d.pause == PauseState::kPaused;
    return d.end(
        error(d.problem.code(), d.problem.message(),
              "; a commit of the previous driver may still arrive, so it is left as it is"));
  }
  return label_and_resume(d);
}

// The ranks hold one version: check the label before the engine serves that version.
EngineCall label_and_resume(DriverState& d) {
  if (!d.result.known || d.labelled == d.result.identity) return go_on(d);
  return read_label(d);
}

namespace {

EngineCall go_on(DriverState& d) {
  d.must_correct_label = false;
  if (d.tidying) return d.make(Phase::kFirstClear, EngineOp::kClearCache);
  return d.first || d.dirty ? clear(d) : resume(d);
}

}  // namespace

Status stale_cache() {
  return error(StatusCode::kBusy,
               "the prefix cache was not cleared and holds entries of the old weights");
}

namespace {

EngineCall clear(DriverState& d) { return d.make(Phase::kClearing, EngineOp::kClearCache); }

}  // namespace

EngineCall resume(DriverState& d) { return d.make(Phase::kResuming, EngineOp::kResume); }

EngineCall on_resumed(DriverState& d, const EngineAnswer& answer) {
  d.first = false;
  d.pause = answer.status.ok() ? PauseState::kRunning : PauseState::kUnknown;
  if (!answer.status.ok()) {
    d.result.left_paused = true;
    return d.end(error(answer.status.code(), d.problem.message(), d.problem.ok() ? "" : "; ",
                       "the engine was not resumed and is left paused, though its ranks hold ",
                       to_string(d.result.identity), ": ", answer.status.message()));
  }
  if (d.wrote && d.dirty) d.remember(stale_cache());
  if (!d.reached) {
    d.remember(d.finish_problem.with_context("its update was not finished"));
    return d.end(d.problem);
  }
  return read_label(d);
}

// If the engine is running, this is the last call of the request; otherwise the engine is resumed
// afterwards.
EngineCall read_label(DriverState& d) { return d.make(Phase::kReadLabel, EngineOp::kReadLabel); }

namespace {

// A base keeps its server's own label, unless it is a version number: a late finish of an earlier
// driver may have set that.
bool label_fits(const DriverState& d, const std::string& label) {
  if (!d.result.identity.run.empty()) return label == d.wanted_label();
  return label.empty() || label == "0" ||
         label.find_first_not_of("0123456789") != std::string::npos;
}

}  // namespace

EngineCall on_label(DriverState& d, const EngineAnswer& answer) {
  const bool serves = d.pause == PauseState::kRunning && !d.tidying;
  const bool none = answer.status.code() == StatusCode::kUnsupported;  // the engine keeps no label
  if (!answer.status.ok() && !none) {
    if (serves) d.remember(d.finish_problem);
    d.remember(answer.status);
    d.must_correct_label = !serves;  // the label is unknown: do not resume
    return serves ? d.end(d.problem) : leave(d, d.problem);
  }
  const std::string wanted = d.wanted_label();
  if (none) d.remember(d.finish_problem.with_context("its update was not finished"));
  if (none || label_fits(d, answer.label)) {
    d.labelled = d.result.identity;
    return serves ? d.end(d.problem) : go_on(d);
  }
  if (std::exchange(d.must_correct_label, true) || d.corrections++ == kCorrections) {
    return leave(d, error(StatusCode::kMismatch, "reports that it serves version ",
                          shown(answer.label), ", expected ", wanted));
  }
  return d.make(Phase::kBeforeLabel, EngineOp::kAsk);
}

// Sets the label within a session, if the engine has sessions: a restarted server has no session
// and refuses. No session is begun in a process other than the one that holds the version, because
// a late finish of an earlier driver would name that process after the version.
EngineCall correct_label(DriverState& d, const EngineAnswer& answer) {
  if (!d.holds_still(answer)) return label_not_proven(d, answer);
  if (!d.options.session) {
    EngineCall set{.op = EngineOp::kSetLabel};
    set.label = d.wanted_label();
    return d.make(Phase::kSetLabel, std::move(set));
  }
  if (d.pause == PauseState::kPaused) return d.make(Phase::kBeginning, EngineOp::kBegin);
  return d.make(Phase::kPausing, EngineOp::kPause);
}

EngineCall label_not_proven(DriverState& d, const EngineAnswer& answer) {
  d.result.known = d.reached = d.result.updated = false;
  d.paused_running = false;
  return leave(d,
               error(StatusCode::kIncomplete, "the engine was started anew, or does not answer (",
                     answer.status.message(), "): its label is not proven"));
}

EngineCall on_label_set(DriverState& d, const EngineAnswer& answer) {
  if (!answer.status.ok() && answer.status.code() != StatusCode::kUnsupported) {
    d.remember(answer.status.with_context("its label was not set"));
  }
  return d.make(Phase::kLabelProof, EngineOp::kAsk);
}

// If the server was restarted in between, its label is wrong: replace it.
EngineCall on_label_proof(DriverState& d, const EngineAnswer& answer) {
  if (d.holds_still(answer)) return read_label(d);
  d.result.known = d.result.updated = false;
  d.remember(error(StatusCode::kIncomplete, "the engine was started anew, or does not answer (",
                   answer.status.message(), "): its label is not proven"));
  EngineCall set{.op = EngineOp::kSetLabel};
  set.label = kUnprovenLabel;
  return d.make(Phase::kTakeLabelBack, std::move(set));
}

}  // namespace driftless::driving
