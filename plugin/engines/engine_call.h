// SPDX-License-Identifier: Apache-2.0
// The calls of a driver (engine_driver.h) to one engine, and what comes of them.
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
  CommitTimes times;
};

}  // namespace driftless
