// SPDX-License-Identifier: Apache-2.0
// DriverState: what an EngineDriver (engine_driver.h) knows in the middle of a request, and the
// calls that every phase makes alike. driver_phases.h decides which call is next. A value; no I/O.
// Internal to engines/.
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

// What the ranks hold, taken together.
struct Held {
  enum Kind : unsigned char { kOne, kUnknown, kDiffer, kTorn } kind = kUnknown;
  EngineIdentity one;
};
[[nodiscard]] Held held_by(const std::vector<RankReply>& replies);

inline constexpr std::string_view kUnprovenLabel = "unproven";

struct DriverState {
  // The next call; its answer is for `to`.
  [[nodiscard]] EngineCall make(Phase to, EngineCall next);
  [[nodiscard]] EngineCall make(Phase to, EngineOp op) { return make(to, EngineCall{.op = op}); }
  // The same call after a while.
  [[nodiscard]] EngineCall again();
  [[nodiscard]] EngineCall end(Status status);
  // Ends the request; the engine stays paused, because its ranks do not hold one version.
  [[nodiscard]] EngineCall stay_paused(const std::string& why);
  // Keeps the first problem of a request.
  void remember(const Status& failure);

  void take(const EngineAnswer& answer);
  void note_time(double elapsed_ms);

  [[nodiscard]] bool same_processes(const std::vector<RankReply>& replies) const;
  // The same processes, with the same weights.
  [[nodiscard]] bool holds_still(const EngineAnswer& answer) const;
  // An update of the engine's session is active, as far as the ranks tell.
  [[nodiscard]] bool updating() const;
  [[nodiscard]] std::optional<std::string> known_digest(std::int64_t version) const;
  // At the goal's version or past it, by number; its digest is not known yet.
  [[nodiscard]] bool is_ahead(const EngineIdentity& identity) const;
  // Whether this identity is the goal's: by run, version and a digest that is known.
  [[nodiscard]] bool is_goal(const EngineIdentity& identity) const;
  [[nodiscard]] std::string wanted_label() const;
  [[nodiscard]] std::string fingerprint() const;

  DriverOptions options;
  Request request = Request::kNone;
  Phase phase = Phase::kEnded;
  EngineCall call, pending;  // the call that is out; the one to make after a wait
  EngineGoal goal;
  DriverResult result;
  std::vector<std::string> processes;  // that answered this request's first question
  PauseState pause = PauseState::kUnknown;
  bool first = true;   // nobody knows what a driver before this one left
  bool dirty = false;  // the caches hold what older weights made
  bool reopened = false, brought = false, staged_already = false;
  bool tidying = false;         // what a driver before this one left; the request goes on after it
  bool paused_running = false;  // it ran when this request paused it
  bool wrote = false, reached = false;
  bool refused = false;     // by the engine: its session did not begin
  bool told_label = false;  // it is being corrected: nothing is resumed before it is right
  int corrections = 0;      // of the label, in this request
  std::optional<EngineIdentity> before;    // of all ranks, before the write
  std::optional<EngineIdentity> labelled;  // that the label is known to tell, in processes
  std::uint64_t staged = 0;
  std::uint64_t stagings = 0;  // numbers the tickets
  int tries = 0, stage_attempts = 0;
  double staging_ms = 0;
  Status problem, finish_problem;
};

}  // namespace driftless::driving
