// SPDX-License-Identifier: Apache-2.0
// EngineDriver: brings one engine from a version to the next, on all its ranks or on none.
//
//   ask -> open -> [ranks differ: pause, rollback] -> stage on all ranks -> all staged the same?
//       -> pause -> begin -> write -> ask -> finish with the label -> clear cache -> resume
//                                      \-> not all there: rollback, then the same
//
// A pure state machine: begin_*() and next() return the call to make, next() takes what came of it.
// It does no I/O, reads no clock and draws no random numbers; engine_transport.h carries its calls.
// It is a value: a copy goes on from the same point.
//
// The rule that it keeps: an engine is resumed only if all its ranks report the same run, version
// and manifest digest, none of them is torn (version -1) and no rank that can prove its weights has
// failed to. Else the engine stays paused, and the error says so. A failure between the pause and
// the first write resumes the engine. A label (the engine's weight_version) is given only to ranks
// that report the version, in the server process that they belong to; an engine whose label is not
// known to be that of what it holds gets it before it is resumed, or stays paused. A base keeps the
// label that its server began with, unless that is a version's number: then it is "unproven".
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/status.h"
#include "plugin/engines/rank_reply.h"

namespace driftless {

enum class EngineOp : unsigned char {
  kEnd,         // no call: the request has ended, see result()
  kWait,        // wait_ms
  kAsk,         // the ranks' status; answered after everything that was said before
  kLook,        // the same, and may be older, if the engine has a cheaper way
  kOpen,        // source, take_over
  kClose,       //
  kStage,       // timeout_s, ticket
  kRollback,    // version
  kPause,       //
  kBegin,       // the engine's own session of an update
  kWrite,       // version, ticket: commit what that staging made ready
  kFinish,      // ends the session; label, if it is not empty, is set in it
  kReadLabel,   //
  kSetLabel,    // label
  kClearCache,  //
  kResume,
  kShares,  // sweep: the ranks' shares (engine_shares.h); no part of a request
  kRead,    // tensor, first, units: what lies there (engine_places.h); no part of a request
};
[[nodiscard]] std::string_view to_string(EngineOp op);

enum class PauseState : unsigned char { kUnknown, kRunning, kPaused };

struct EngineCall {
  EngineOp op = EngineOp::kEnd;
  std::uint64_t version = 0;
  std::int64_t wait_ms = 0;
  double timeout_s = 0;
  std::string source{}, ticket{}, label{};
  std::string take_over{};  // of kOpen: the run that may take the ranks over from another
  bool must = false;        // to be made also while everything ends
  bool sweep = false;
  bool quiet = false;  // of kAsk: by somebody who looks on, and disturbs no driver
  std::string tensor{};
  std::uint64_t first = 0, units = 0;
  PauseState pause = PauseState::kUnknown;
};

struct EngineAnswer {
  Status status{};  // kUnsupported: this engine has no such call
  std::vector<RankReply>
      ranks{};              // of kAsk, kLook, kOpen, kClose, kStage, kRollback, kShares, kRead
  std::string label{};      // of kReadLabel
  bool paused = false;      // the transport had to pause the engine, and left it so
  bool refused = false;     // of kBegin: the engine answered that it did not
  bool unfinished = false;  // of kFinish: it may not have happened, whatever the label says
  double elapsed_ms = 0;
};

struct EngineTimes {
  double stage_ms = 0, pause_ms = 0, apply_ms = 0, resume_ms = 0;
};

// What an engine is to be brought to.
struct EngineGoal {
  std::string run;            // hex; empty: whatever the ranks follow
  std::uint64_t version = 0;  // at least; 0: whatever is newer
  // The manifest's digest (hex) of a version of that run, if it is known.
  std::function<std::optional<std::string>(std::uint64_t)> digest_of;
};

struct DriverOptions {
  std::string source;         // that the workers are to follow (allowed.py)
  std::int64_t stage_ms = 0;  // for the ranks' staging
  std::string ticket;         // random: commits of other drivers, and late ones, are refused
  bool session = true;        // the engine has sessions, until its ranks say otherwise
  std::string take_over{};    // hex: the run that may take the engine over from another
};

struct DriverResult {
  Status status;
  bool updated = false;      // a newer version was committed and proven
  bool left_paused = false;  // by the rule, or because resuming failed
  std::int64_t from_version = 0;
  EngineIdentity identity;  // that all ranks report, if `known`
  bool known = false;
  std::optional<std::uint64_t> staged;
  std::vector<RankReply> replies;  // the newest
  EngineTimes times;
};

class EngineDriver {
 public:
  explicit EngineDriver(DriverOptions options) : options_(std::move(options)) {}

  // Requests. Each returns the first call; the request before must have ended.
  // `run`: as of a goal; an engine that holds another one is not opened.
  [[nodiscard]] EngineCall begin_open(std::string run = {});
  [[nodiscard]] EngineCall begin_staging(std::int64_t stage_ms);
  // Waits until all ranks have staged the same.
  [[nodiscard]] EngineCall begin_wait_staged(std::int64_t stage_ms);
  // `staged`: the ranks stage already (begin_staging).
  [[nodiscard]] EngineCall begin_update(EngineGoal goal, bool staged = false);
  // Resumes what this driver left paused, if the rule allows it.
  [[nodiscard]] EngineCall begin_close();

  [[nodiscard]] EngineCall next(const EngineAnswer& answer);
  [[nodiscard]] const DriverResult& result() const { return result_; }
  // What came of a kAsk between two requests: the engine may have been left paused.
  void heard(const EngineAnswer& answer) { take(answer); }
  void set_stage_ms(std::int64_t stage_ms) { options_.stage_ms = stage_ms; }
  [[nodiscard]] PauseState pause_state() const { return pause_; }
  // The whole state as text: two drivers with the same text do the same.
  [[nodiscard]] std::string fingerprint() const;

 private:
  enum class Request : unsigned char { kNone, kOpen, kStaging, kWaitStaged, kUpdate, kClose };
  enum class Phase : unsigned char {
    kFirstAsk,
    kReopen,
    kOpened,
    kPauseToUndo,
    kBroughtTogether,
    kFirstClear,
    kPauseToClear,
    kFirstResume,
    kAhead,
    kStaging,
    kStaged,
    kPausing,
    kBeginning,
    kWriting,
    kProof,
    kUndone,
    kFinishing,
    kSessionLeft,
    kClearing,
    kResuming,
    kReadLabel,
    kBeforeLabel,
    kSetLabel,
    kLabelProof,
    kTakeLabelBack,
    kEnded
  };
  struct Held {
    enum Kind : unsigned char { kOne, kUnknown, kDiffer, kTorn } kind = kUnknown;
    EngineIdentity one;
  };

  [[nodiscard]] EngineCall start(Request request);
  [[nodiscard]] EngineCall make(Phase phase, EngineCall call);
  [[nodiscard]] EngineCall make(Phase phase, EngineOp op) {
    return make(phase, EngineCall{.op = op});
  }
  [[nodiscard]] EngineCall again();
  [[nodiscard]] bool is_repeated(const EngineAnswer& answer) const;
  [[nodiscard]] EngineCall repeat();
  [[nodiscard]] EngineCall end(Status status);
  [[nodiscard]] EngineCall leave(const Status& problem);
  [[nodiscard]] EngineCall stay_paused(const std::string& why);

  [[nodiscard]] EngineCall on_first_ask(const EngineAnswer& answer);
  [[nodiscard]] EngineCall open();
  [[nodiscard]] EngineCall on_opened(const EngineAnswer& answer);
  [[nodiscard]] EngineCall judge();
  [[nodiscard]] EngineCall bring_together();
  [[nodiscard]] EngineCall on_paused_to_undo(const EngineAnswer& answer);
  [[nodiscard]] EngineCall on_brought_together(const EngineAnswer& answer);
  [[nodiscard]] EngineCall tidy();
  [[nodiscard]] EngineCall on_first_clear(const EngineAnswer& answer);
  [[nodiscard]] EngineCall on_paused_to_clear(const EngineAnswer& answer);
  [[nodiscard]] EngineCall on_first_resume(const EngineAnswer& answer);
  [[nodiscard]] EngineCall ready();
  [[nodiscard]] EngineCall on_ahead(const EngineAnswer& answer);
  [[nodiscard]] EngineCall stage();
  [[nodiscard]] EngineCall on_staging(const EngineAnswer& answer);
  [[nodiscard]] EngineCall on_staged(const EngineAnswer& answer);
  [[nodiscard]] EngineCall judge_staged();
  [[nodiscard]] EngineCall on_paused(const EngineAnswer& answer);
  [[nodiscard]] EngineCall on_begun(const EngineAnswer& answer);
  [[nodiscard]] EngineCall write();
  [[nodiscard]] EngineCall on_proof(const EngineAnswer& answer);
  [[nodiscard]] EngineCall on_undone(const EngineAnswer& answer);
  [[nodiscard]] EngineCall finish();
  [[nodiscard]] EngineCall on_finished(const EngineAnswer& answer);
  [[nodiscard]] EngineCall on_session_left(const EngineAnswer& answer);
  [[nodiscard]] EngineCall label_and_resume();
  [[nodiscard]] EngineCall go_on();
  [[nodiscard]] EngineCall clear();
  [[nodiscard]] static Status stale_cache();
  [[nodiscard]] EngineCall resume();
  [[nodiscard]] EngineCall on_resumed(const EngineAnswer& answer);
  [[nodiscard]] EngineCall read_label();
  [[nodiscard]] EngineCall on_label(const EngineAnswer& answer);
  [[nodiscard]] EngineCall correct_label(const EngineAnswer& answer);
  [[nodiscard]] EngineCall label_not_proven(const EngineAnswer& answer);
  // The same processes, with the same weights.
  [[nodiscard]] bool holds_still(const EngineAnswer& answer) const;
  [[nodiscard]] std::string wanted_label() const;
  [[nodiscard]] bool label_fits(const std::string& label) const;
  [[nodiscard]] EngineCall on_label_set(const EngineAnswer& answer);
  [[nodiscard]] EngineCall on_label_proof(const EngineAnswer& answer);

  void note_time(double elapsed_ms);
  void take(const EngineAnswer& answer);
  [[nodiscard]] bool same_processes(const std::vector<RankReply>& replies) const;
  // An update of the engine's session is active, as far as the ranks tell.
  [[nodiscard]] bool updating() const;
  [[nodiscard]] static Held held_by(const std::vector<RankReply>& replies);
  [[nodiscard]] std::optional<std::string> known_digest(std::int64_t version) const;
  // At the goal's version or past it, by number; its digest is not known yet.
  [[nodiscard]] bool is_ahead(const EngineIdentity& identity) const;
  // Whether this identity is the goal's: by run, version and a digest that is known.
  [[nodiscard]] bool is_goal(const EngineIdentity& identity) const;
  [[nodiscard]] bool is_staged_version(const Held& held) const;
  // Ok unless a rank holds another run's weights, which the goal's may not take over.
  [[nodiscard]] Status check_same_run(const std::vector<RankReply>& replies) const;
  void remember(const Status& problem);

  DriverOptions options_;
  Request request_ = Request::kNone;
  Phase phase_ = Phase::kEnded;
  EngineCall call_, pending_;  // the call that is out; the one to make after a wait
  EngineGoal goal_;
  DriverResult result_;
  std::vector<std::string> processes_;  // that answered this request's first question
  PauseState pause_ = PauseState::kUnknown;
  bool first_ = true;   // nobody knows what a driver before this one left
  bool dirty_ = false;  // the caches hold what older weights made
  bool reopened_ = false, brought_ = false, staged_already_ = false;
  bool tidying_ = false;         // what a driver before this one left; the request goes on after it
  bool paused_running_ = false;  // it ran when this request paused it
  bool wrote_ = false, reached_ = false;
  bool refused_ = false;     // by the engine: its session did not begin
  bool told_label_ = false;  // it is being corrected: nothing is resumed before it is right
  int corrections_ = 0;      // of the label, in this request
  std::optional<EngineIdentity> before_;    // of all ranks, before the write
  std::optional<EngineIdentity> labelled_;  // that the label is known to tell, in processes_
  std::uint64_t staged_ = 0;
  std::uint64_t stagings_ = 0;  // numbers the tickets
  int tries_ = 0, stage_attempts_ = 0;
  double staging_ms_ = 0;
  Status problem_, finish_problem_;
};

}  // namespace driftless
