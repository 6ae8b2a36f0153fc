// SPDX-License-Identifier: Apache-2.0
// The calls that a driver (engine_driver.h) makes to one engine, and their answers.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/status.h"
#include "formats/records.h"
#include "plugin/engines/rank_reply.h"

namespace driftless {

enum class EngineOp : unsigned char {
  kEnd,   // no call: the request has ended, see result()
  kWait,  // wait_ms
  kAsk,   // the ranks' status, after all earlier calls have taken effect
  kLook,  // as kAsk, but the status may be older, if the engine has a cheaper way to report it
  kOpen,  // source, take_over
  kClose,
  kStage,     // timeout_s, ticket
  kRollback,  // version
  kPause,
  kBegin,   // begins the engine's own update session
  kWrite,   // version, ticket: commits what the staging with that ticket prepared
  kFinish,  // ends the session, and sets the label in it unless the label is empty
  kReadLabel,
  kSetLabel,  // label
  kClearCache,
  kResume,
  kShares,  // sweep: the ranks' shares (engine_shares.h); not part of a request
  kRead,    // tensor, first, units: the elements held (engine_places.h); not part of a request
};
[[nodiscard]] std::string_view to_string(EngineOp op);

enum class PauseState : unsigned char { kUnknown, kRunning, kPaused };

struct EngineCall {
  EngineOp op = EngineOp::kEnd;
  std::uint64_t version = 0;
  std::int64_t wait_ms = 0;
  double timeout_s = 0;
  std::string source{}, ticket{}, label{};
  std::string take_over{};  // kOpen: the run that may take the ranks over from another run
  bool must = false;        // make the call even while the process shuts down
  bool sweep = false;
  bool quiet = false;  // kAsk by an observer: it must not disturb the driver
  std::string tensor{};
  std::uint64_t first = 0, units = 0;
  PauseState pause = PauseState::kUnknown;
};

struct EngineAnswer {
  Status status{};  // kUnsupported: this engine has no such call
  // Filled by kAsk, kLook, kOpen, kClose, kStage, kRollback, kShares and kRead.
  std::vector<RankReply> ranks{};
  std::string label{};      // kReadLabel
  bool paused = false;      // the transport had to pause the engine, and left it paused
  bool refused = false;     // kBegin: the engine answered that it did not begin
  bool unfinished = false;  // kFinish: it may not have happened, even if the label is set
  double elapsed_ms = 0;
};

// The version that an engine shall reach.
struct EngineGoal {
  std::string run;            // hex; empty: the run that the ranks follow
  std::uint64_t version = 0;  // at least this version; 0: any newer one
  // Returns the manifest digest (hex) of a version of that run, if it is known.
  std::function<std::optional<std::string>(std::uint64_t)> digest_of;
};

struct DriverOptions {
  std::string source;         // the workers shall follow it (allowed.py)
  std::int64_t stage_ms = 0;  // time limit for the ranks' staging
  std::string ticket;         // random: the ranks refuse late commits and commits of other drivers
  bool session = true;      // assume that the engine has sessions until its ranks report otherwise
  std::string take_over{};  // hex: the run that may take the engine over from another run
};

struct DriverResult {
  Status status;
  bool updated = false;      // a newer version was committed and proven
  bool left_paused = false;  // the rule of engine_driver.h forbids to resume, or resuming failed
  std::int64_t from_version = 0;
  EngineIdentity identity;  // reported by all ranks; valid if `known`
  bool known = false;
  std::optional<std::uint64_t> staged;
  std::vector<RankReply> replies;  // the newest ones
  CommitTimes times;
};

}  // namespace driftless
