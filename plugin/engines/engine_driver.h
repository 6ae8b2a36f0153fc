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

#include "plugin/engines/driver_state.h"

namespace driftless {

class EngineDriver {
 public:
  explicit EngineDriver(DriverOptions options) { state_.options = std::move(options); }

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
  [[nodiscard]] const DriverResult& result() const { return state_.result; }
  // What came of a kAsk between two requests: the engine may have been left paused.
  void heard(const EngineAnswer& answer) { state_.take(answer); }
  void set_stage_ms(std::int64_t stage_ms) { state_.options.stage_ms = stage_ms; }
  [[nodiscard]] PauseState pause_state() const { return state_.pause; }
  // The whole state as text: two drivers with the same text do the same.
  [[nodiscard]] std::string fingerprint() const { return state_.fingerprint(); }

 private:
  driving::DriverState state_;
};

}  // namespace driftless
