// SPDX-License-Identifier: Apache-2.0
#include "plugin/observe/run_status.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/hash128.h"
#include "core/version.h"
#include "formats/record_reader.h"

namespace driftless {
namespace {

using OrderedJson = nlohmann::ordered_json;

std::uint64_t lag(std::uint64_t newest, std::uint64_t held) {
  return newest > held ? newest - held : 0;
}

template <typename Record>
OrderedJson with_lag(const std::vector<Record>& records, std::uint64_t newest) {
  OrderedJson list = OrderedJson::array();
  for (const Record& record : records) {
    list.push_back(to_json(record));
    list.back()["lag"] = lag(newest, record.version);
  }
  return list;
}

constexpr std::size_t kMostVersions = 10'000, kMostHolders = 100'000, kMostCodes = 64;

template <typename Record>
Status read_list(const Json& json, std::string_view key, std::size_t most, std::string_view what,
                 Result<Record> (*read)(const Json&, std::string_view),
                 std::vector<Record>& records) {
  DRIFTLESS_ASSIGN_OR_RETURN(const Json* const list, json_array(json, key, what));
  if (list->size() > most) {
    return error(StatusCode::kCorrupt, what, ": ", key, ": ", list->size(), " are too many");
  }
  for (const Json& each : *list) {
    DRIFTLESS_ASSIGN_OR_RETURN(Record record, read(each, what));
    records.push_back(std::move(record));
  }
  return {};
}

Status read_trainer(const Json& json, std::string_view what, RunStatus& status) {
  DRIFTLESS_ASSIGN_OR_RETURN(const Json* const trainer, json_object(json, "trainer", what));
  DRIFTLESS_ASSIGN_OR_RETURN(const std::string state, json_string(*trainer, "state", what));
  for (const TrainerState known :
       {TrainerState::kAlive, TrainerState::kSilent, TrainerState::kEnded}) {
    if (to_string(known) == state) status.trainer = known;
  }
  DRIFTLESS_ASSIGN_OR_RETURN(status.trainer_seen, json_string(*trainer, "seen", what));
  return {};
}

}  // namespace

std::optional<std::chrono::milliseconds> usual_interval(std::span<const Moment> made) {
  if (made.size() < 3) return std::nullopt;
  std::vector<std::chrono::milliseconds> intervals;
  for (std::size_t i = 1; i < made.size(); ++i) {
    intervals.push_back(
        std::chrono::duration_cast<std::chrono::milliseconds>(made[i] - made[i - 1]));
  }
  const auto middle = intervals.begin() + static_cast<std::ptrdiff_t>(intervals.size() / 2);
  std::ranges::nth_element(intervals, middle);
  return *middle;
}

std::chrono::milliseconds longest_silence(std::optional<std::chrono::milliseconds> usual) {
  if (!usual) return std::chrono::milliseconds::max();
  return std::max<std::chrono::milliseconds>(10 * *usual, std::chrono::minutes(1));
}

std::string_view to_string(TrainerState state) {
  switch (state) {
    case TrainerState::kAlive: return "alive";
    case TrainerState::kSilent: return "silent";
    case TrainerState::kEnded: return "ended";
    case TrainerState::kUnknown: break;
  }
  return "unknown";
}

OrderedJson to_json(const RunStatus& status) {
  OrderedJson json = {
      {"schema", 1},
      {"role", status.origin.role},
      {"rank", status.origin.rank},
      {"host", status.origin.host},
      {"time", status.origin.time},
      {"run", status.run.is_zero() ? "" : to_hex(status.run)},
      {"version", status.version},
      {"digest", status.digest},
      {"trainer", {{"state", to_string(status.trainer)}, {"seen", status.trainer_seen}}}};
  if (!status.fallback.empty()) json["fallback"] = status.fallback;
  json["versions"] = OrderedJson::array();
  for (const VersionRecord& version : status.versions) {
    json["versions"].push_back(to_json(version));
  }
  json["engines"] = with_lag(status.engines, status.version);
  json["rollouts"] = with_lag(status.rollouts, status.version);
  json["failing"] = status.failing;
  json["refusals"] = OrderedJson::object();
  for (const auto& [code, count] : status.refusals) json["refusals"][code] = count;
  return json;
}

Result<RunStatus> parse_run_status(std::string_view text, std::string_view what) {
  DRIFTLESS_ASSIGN_OR_RETURN(const Json json, parse_json(text, what));
  DRIFTLESS_ASSIGN_OR_RETURN(const std::uint64_t schema, json_u64(json, "schema", what));
  if (schema != 1) {
    return error(StatusCode::kUnsupported, what, ": schema ", schema, ", and this build reads 1");
  }
  RunStatus status;
  DRIFTLESS_ASSIGN_OR_RETURN(status.origin, read_origin(json, status.run, what));
  DRIFTLESS_ASSIGN_OR_RETURN(status.version, json_u64(json, "version", what));
  if (status.version > kMaxVersion) {
    return error(StatusCode::kCorrupt, what, ": version: too large");
  }
  DRIFTLESS_ASSIGN_OR_RETURN(status.digest, json_string(json, "digest", what));
  if (json.contains("fallback")) {
    DRIFTLESS_ASSIGN_OR_RETURN(status.fallback, json_string(json, "fallback", what));
  }
  DRIFTLESS_RETURN_IF_ERROR(read_trainer(json, what, status));
  DRIFTLESS_RETURN_IF_ERROR(
      read_list(json, "versions", kMostVersions, what, read_version_record, status.versions));
  DRIFTLESS_RETURN_IF_ERROR(
      read_list(json, "engines", kMostHolders, what, read_engine_record, status.engines));
  DRIFTLESS_RETURN_IF_ERROR(
      read_list(json, "rollouts", kMostHolders, what, read_rollout_record, status.rollouts));
  if (const auto failing = json.find("failing"); failing != json.end()) {
    if (!failing->is_string())
      return error(StatusCode::kCorrupt, what, ": failing: expected a text");
    status.failing = failing->get<std::string>();
  }
  DRIFTLESS_ASSIGN_OR_RETURN(const Json* const refusals, json_object(json, "refusals", what));
  for (const auto& [code, count] : refusals->items()) {
    if (!count.is_number_unsigned() || status.refusals.size() == kMostCodes) {
      return error(StatusCode::kCorrupt, what, ": refusals: expected a few counts");
    }
    status.refusals[code] = count.get<std::uint64_t>();
  }
  return status;
}

}  // namespace driftless
