// SPDX-License-Identifier: Apache-2.0
// RunStatus: what an operator asks of a run: is the trainer alive, which versions are there, who
// holds which. The status server answers with its JSON form, `driftless status` prints it.
// docs/operate/status.md describes every key.
#pragma once

#include <chrono>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "formats/records.h"

namespace driftless {

enum class TrainerState { kUnknown, kAlive, kSilent, kEnded };
[[nodiscard]] std::string_view to_string(TrainerState state);  // "unknown", "alive", ...

using Moment = std::chrono::system_clock::time_point;
// Versions of which it is looked at when they were made.
inline constexpr std::size_t kMostMoments = 11;
// The median of the times between versions that were made at these moments, which ascend; nothing
// if there are fewer than three.
[[nodiscard]] std::optional<std::chrono::milliseconds> usual_interval(std::span<const Moment> made);
// A trainer that makes no version for longer is silent: ten times the usual interval, and a minute
// at least. For ever, if that is not known.
[[nodiscard]] std::chrono::milliseconds longest_silence(
    std::optional<std::chrono::milliseconds> usual);

struct RunStatus {
  RecordOrigin origin;  // the process that answers; role "status": the command
  Hash128 run;
  std::uint64_t version = 0;  // the newest of the run
  std::string digest;         // of the weights at it, hex; empty: not known
  TrainerState trainer = TrainerState::kUnknown;
  std::string fallback{};      // the road in use in place of the configured one; empty: that one
  std::string trainer_seen{};  // UTC, its last sign of life; empty: not known
  std::vector<VersionRecord> versions{};  // oldest first
  std::vector<EngineRecord> engines{};
  std::vector<RolloutRecord> rollouts{};
  std::string failing{};  // an agent: why it cannot take the next version; empty: it can
  std::map<std::string, std::uint64_t> refusals{};  // failures so far, by their code's name
};

// Engines and rollouts have `lag`, too: the versions that they are behind the newest one.
[[nodiscard]] nlohmann::ordered_json to_json(const RunStatus& status);
// Back. kCorrupt, naming `what`; kUnsupported for another schema. Lists have bounds.
[[nodiscard]] Result<RunStatus> parse_run_status(std::string_view text, std::string_view what);

}  // namespace driftless
