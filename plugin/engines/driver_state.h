// SPDX-License-Identifier: Apache-2.0
// DriverState: the state of an EngineDriver (engine_driver.h) within a request, and the calls that
// all phases share. driver_phases.h decides which call comes next. A value; no I/O. Internal to
// engines/.
#pragma once

#include "plugin/engines/engine_call.h"

namespace driftless::driving {

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

// The combined state of all ranks: one version, different versions, a torn one, or unknown.
struct Held {
  enum Kind : unsigned char { kOne, kUnknown, kDiffer, kTorn } kind = kUnknown;
  EngineIdentity one;
};
[[nodiscard]] Held held_by(const std::vector<RankReply>& replies);

inline constexpr std::string_view kUnprovenLabel = "unproven";

struct DriverState {
  // Returns `next` as the next call; phase `to` handles its answer.
  [[nodiscard]] EngineCall make(Phase to, EngineCall next);
  [[nodiscard]] EngineCall make(Phase to, EngineOp op) { return make(to, EngineCall{.op = op}); }
  // Makes the current call again after a wait.
  [[nodiscard]] EngineCall again();
  [[nodiscard]] EngineCall end(Status status);
  // Ends the request. The engine stays paused: its weights, session or label may be wrong.
  [[nodiscard]] EngineCall stay_paused(const std::string& why);
  // Keeps the first problem of a request; later ones are dropped.
  void remember(const Status& failure);

  void take(const EngineAnswer& answer);
  void note_time(double elapsed_ms);

  [[nodiscard]] bool same_processes(const std::vector<RankReply>& replies) const;
  // Whether the same processes answered, and still hold the same weights.
  [[nodiscard]] bool holds_still(const EngineAnswer& answer) const;
  // Whether a rank reports that an update in the engine's own session is active.
  [[nodiscard]] bool updating() const;
  [[nodiscard]] std::optional<std::string> known_digest(std::int64_t version) const;
  // Whether the identity has the goal's version number or a higher one, but its digest is not known
  // yet.
  [[nodiscard]] bool is_ahead(const EngineIdentity& identity) const;
  // Whether the identity is the goal: its run and version match, and its digest is known and equal.
  [[nodiscard]] bool is_goal(const EngineIdentity& identity) const;
  [[nodiscard]] std::string wanted_label() const;
  [[nodiscard]] std::string fingerprint() const;

  DriverOptions options;
  Request request = Request::kNone;
  Phase phase = Phase::kEnded;
  EngineCall call, pending;  // the call under way; the call to make after a wait
  EngineGoal goal;
  DriverResult result;
  std::vector<std::string> processes;  // the processes that answered this request's first call
  PauseState pause = PauseState::kUnknown;
  bool first = true;   // an earlier driver may have left anything behind
  bool dirty = false;  // the caches hold results of older weights
  bool reopened = false, brought = false, staged_already = false;
  bool tidying = false;  // clears what an earlier driver left; the request continues afterwards
  bool paused_running = false;  // the engine was running when this request paused it
  bool wrote = false, reached = false;
  bool refused = false;  // the engine answered that its session did not begin
  bool must_correct_label =
      false;            // the label is wrong or unknown: do not resume before it is corrected
  int corrections = 0;  // label corrections in this request
  std::optional<EngineIdentity> before;  // held by all ranks before the write
  // The engine's label in `processes` is known to name this identity.
  std::optional<EngineIdentity> labelled;
  std::uint64_t staged = 0;
  std::uint64_t stagings = 0;  // numbers the tickets
  int tries = 0, stage_attempts = 0;
  double staging_ms = 0;
  Status problem, finish_problem;
};

}  // namespace driftless::driving
