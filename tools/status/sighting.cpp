// SPDX-License-Identifier: Apache-2.0
#include "tools/status/sighting.h"

#include <algorithm>
#include <optional>

#include "core/counted.h"
#include "core/utc_time.h"

namespace driftless {
namespace {

using Milliseconds = std::chrono::milliseconds;
using namespace std::chrono_literals;

constexpr std::uint64_t kUsualLag = 1;  // the version under way

Milliseconds between(Moment from, Moment to) {
  return std::chrono::duration_cast<Milliseconds>(to - from);
}

std::vector<Moment> last_moments(const RunStatus& status) {
  std::vector<Moment> moments;
  for (auto at = status.versions.rbegin();
       at != status.versions.rend() && moments.size() < kMostMoments; ++at) {
    if (const auto when = parse_utc(at->origin.time); when) moments.push_back(*when);
  }
  std::ranges::sort(moments);
  return moments;
}

void add_engine_problems(const RunStatus& status, std::uint64_t most,
                         std::vector<std::string>& found) {
  for (const EngineRecord& engine : status.engines) {
    const std::string name = concat("engine ", engine.engine, ": ");
    const std::uint64_t versions_behind = lag(status, engine.version);
    if (!engine.reachable) {
      found.push_back(concat(name, "cannot be reached: ", engine.status.to_string()));
    } else if (engine.reload) {
      found.push_back(concat(name, "lost its version and is to be loaded again",
                             engine.status.ok() ? "" : ": ",
                             engine.status.ok() ? "" : engine.status.to_string()));
    } else if (!engine.status.ok()) {
      found.push_back(concat(name, "its last update failed: ", engine.status.to_string()));
    } else if (versions_behind > most) {
      found.push_back(concat(name, counted(versions_behind, "version"), " behind"));
    } else if (!engine.kind.empty() && engine.proven.empty() && engine.version > 0) {
      found.push_back(concat(name, "nothing proves that it holds version ", engine.version));
    }
  }
}

void add_rollout_problems(const RunStatus& status, std::uint64_t most,
                          std::vector<std::string>& found) {
  for (const RolloutRecord& rollout : status.rollouts) {
    if (rollout.left || rollout.idle) continue;
    const std::string name = concat("rollout ", rollout.id, ": ");
    const std::uint64_t versions_behind = lag(status, rollout.version);
    if (rollout.version > status.version) {
      found.push_back(concat(name, "holds version ", rollout.version, ", and the newest one is ",
                             status.version));
    } else if (versions_behind <= most && !rollout.digest.empty() && !rollout.proven &&
               rollout.unproven == 0) {
      found.push_back(concat(name, "its digest is not that of version ", rollout.version));
    } else if (versions_behind > most) {
      found.push_back(concat(name, counted(versions_behind, "version"), " behind"));
    }
  }
}

}  // namespace

std::string human_time(Milliseconds time) {
  const auto seconds = std::chrono::round<std::chrono::seconds>(time).count();
  if (time < 1s) return concat(time.count(), " ms");
  if (seconds < 120) return concat(seconds, " s");
  if (seconds < 120 * 60) return concat(seconds / 60, " min");
  if (seconds < 48 * 3600) return concat(seconds / 3600, " h");
  return counted(seconds / 86'400, "day");
}

std::uint64_t lag(const RunStatus& status, std::uint64_t version) {
  return status.version > version ? status.version - version : 0;
}

void judge_by_age(Sighting& sighting, Moment now, bool gone) {
  RunStatus& status = sighting.status;
  status.trainer = TrainerState::kUnknown;
  const std::vector<Moment> moments = last_moments(status);
  if (moments.empty()) {
    sighting.why = "no version has a time";
    return;
  }
  status.trainer_seen = utc_text(moments.back());
  const Milliseconds age = between(moments.back(), now);
  if (age < -1s) {
    sighting.why = concat("last version made ", human_time(-age),
                          " ahead of the clock of this host: the clocks differ");
    return;
  }
  sighting.why = concat("last version ", human_time(std::max(age, 0ms)), " ago");
  const std::optional<Milliseconds> usual = usual_interval(moments);
  if (usual) {
    sighting.why +=
        concat(", usually one every ", *usual < 1s ? "second or less" : human_time(*usual));
  }
  const Milliseconds patience =
      gone ? std::max(2 * usual.value_or(30s), Milliseconds(5s)) : longest_silence(usual);
  if (age > patience) status.trainer = TrainerState::kSilent;
}

std::vector<std::string> problems(const Sighting& sighting) {
  const RunStatus& status = sighting.status;
  const bool ended = status.trainer == TrainerState::kEnded;
  std::vector<std::string> found;
  if (status.trainer == TrainerState::kSilent) {
    found.emplace_back("the trainer is silent");
  }
  if (sighting.stalled) {
    found.push_back(
        concat("the trainer's process is there, but has made no version for long: ", sighting.why));
  }
  if (!status.failing.empty()) {
    found.push_back(concat("the next version cannot be taken: ", status.failing));
  }
  add_engine_problems(status, ended ? 0 : kUsualLag, found);
  add_rollout_problems(status, ended ? 0 : kUsualLag, found);
  for (const std::string& damage : sighting.damaged) found.push_back(concat("damaged: ", damage));
  return found;
}

}  // namespace driftless
