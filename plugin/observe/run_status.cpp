// SPDX-License-Identifier: Apache-2.0
#include "plugin/observe/run_status.h"

#include <nlohmann/json.hpp>

#include "core/hash128.h"

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

}  // namespace

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
  json["versions"] = OrderedJson::array();
  for (const VersionRecord& version : status.versions) {
    json["versions"].push_back(to_json(version));
  }
  json["engines"] = with_lag(status.engines, status.version);
  json["rollouts"] = with_lag(status.rollouts, status.version);
  json["refusals"] = OrderedJson::object();
  for (const auto& [code, count] : status.refusals) json["refusals"][code] = count;
  return json;
}

}  // namespace driftless
