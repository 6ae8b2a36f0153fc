// SPDX-License-Identifier: Apache-2.0
// EngineDriver: moves one engine from one version to the next, on all its ranks or on none.
//
//   ask -> open -> [ranks differ: pause, rollback] -> stage on all ranks -> all staged the same?
//       -> pause -> begin -> write -> ask -> finish with the label -> clear cache -> resume
//                                      \-> not all there: rollback, then the same
//
// A pure state machine: begin_*() and next() return the call to make, and next() takes its answer.
// It does no I/O, reads no clock and draws no random numbers; engine_transport.h carries its calls.
// It is a value: a copy continues from the same point.
//
// The driver keeps one rule. It resumes an engine only if all ranks report the same run, version
// and manifest digest, no rank is torn (version -1), and no rank that can prove its weights failed
// to. Otherwise the engine stays paused, and the error says so. A failure between the pause and the
// first write resumes the engine. The driver sets a label (the engine's weight_version) only while
// the ranks report that version, and only in the server process to which they belong. If the label
// may name another version than the engine holds, the driver corrects it before it resumes the
// engine, or leaves the engine paused. A base keeps the label with which its server started, unless
// that label is a version number: then it becomes "unproven".
#pragma once

#include "plugin/engines/driver_state.h"

namespace driftless {

class EngineDriver {
 public:
  explicit EngineDriver(DriverOptions options) { state_.options = std::move(options); }

  // Requests. Each returns the first call; the previous request must have ended.
  [[nodiscard]] EngineCall begin_open(std::string run = {});
  [[nodiscard]] EngineCall begin_staging(std::int64_t stage_ms);
  // Waits until all ranks have staged the same version.
  [[nodiscard]] EngineCall begin_wait_staged(std::int64_t stage_ms);
  // `staged`: the ranks are staging already (begin_staging).
  [[nodiscard]] EngineCall begin_update(EngineGoal goal, bool staged = false);
  // Resumes an engine that this driver left paused, if the rule allows it.
  [[nodiscard]] EngineCall begin_close();

  [[nodiscard]] EngineCall next(const EngineAnswer& answer);
  [[nodiscard]] const DriverResult& result() const { return state_.result; }
  // Takes the answer to a kAsk made between two requests: the engine may be paused.
  void take(const EngineAnswer& answer) { state_.take(answer); }
  void set_stage_ms(std::int64_t stage_ms) { state_.options.stage_ms = stage_ms; }
  [[nodiscard]] PauseState pause_state() const { return state_.pause; }
  // The whole state as text: two drivers with equal text behave alike.
  [[nodiscard]] std::string fingerprint() const { return state_.fingerprint(); }

 private:
  driving::DriverState state_;
};

}  // namespace driftless
