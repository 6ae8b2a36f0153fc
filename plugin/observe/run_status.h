// SPDX-License-Identifier: Apache-2.0
// RunStatus: the state of a run for its operator: whether the trainer is alive, which versions
// exist, and which receivers hold them. The status server answers with its JSON form, and
// `driftless status` prints it. docs/operate/status.md describes every key.
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
// The number of versions whose times are used for the usual interval.
inline constexpr std::size_t kMostMoments = 11;
// The median interval between versions made at these ascending times; nothing if there are fewer
// than three.
[[nodiscard]] std::optional<std::chrono::milliseconds> usual_interval(std::span<const Moment> made);
// A trainer that makes no version for longer than this counts as silent: ten times the usual
// interval, and at least a minute. Unlimited if the interval is not known.
[[nodiscard]] std::chrono::milliseconds longest_silence(
    std::optional<std::chrono::milliseconds> usual);

struct RunStatus {
  RecordOrigin origin;  // the process that answers; role "status": the command itself
  Hash128 run;
  std::uint64_t version = 0;  // the run's newest version
  std::string digest;         // digest of its weights, hex; empty: not known
  TrainerState trainer = TrainerState::kUnknown;
  std::string fallback{};      // the road used in place of the configured one; empty: none
  std::string trainer_seen{};  // UTC, the trainer's last sign of life; empty: not known
  std::vector<VersionRecord> versions{};  // oldest first
  std::vector<EngineRecord> engines{};
  std::vector<RolloutRecord> rollouts{};
  std::string failing{};  // an agent: why it cannot take the next version; empty: it can
  std::map<std::string, std::uint64_t> refusals{};  // failures so far, by status code name
};

// The JSON of engines and rollouts also has `lag`: by how many versions they are behind the newest
// one.
[[nodiscard]] nlohmann::ordered_json to_json(const RunStatus& status);
// Parses the JSON form. kCorrupt, naming `what`; kUnsupported for another schema. List lengths are
// bounded.
[[nodiscard]] Result<RunStatus> parse_run_status(std::string_view text, std::string_view what);

}  // namespace driftless
