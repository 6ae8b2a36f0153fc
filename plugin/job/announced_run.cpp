// SPDX-License-Identifier: Apache-2.0
#include "plugin/job/announced_run.h"

#include <nlohmann/json.hpp>

namespace driftless {
namespace {

// Names the job (OpenRoad::job). Receivers without a fallback ignore it.
constexpr const char* kJobKey = "job";

}  // namespace

std::optional<AnnouncedRun> read_announced(std::string_view run_info) {
  const auto json = nlohmann::json::parse(run_info, nullptr, false);
  const auto text = [&](const char* key) {
    const auto found = json.is_object() ? json.find(key) : json.end();
    return found != json.end() && found->is_string() ? found->get<std::string>() : std::string();
  };
  AnnouncedRun announced{text("run"), text(kJobKey)};
  return announced.run.empty() ? std::nullopt : std::optional(std::move(announced));
}

std::string with_job(std::string_view run_info, std::string_view job) {
  auto json = nlohmann::ordered_json::parse(run_info, nullptr, false);
  if (!json.is_object()) return std::string(run_info);
  json[kJobKey] = job;
  using Handler = nlohmann::ordered_json::error_handler_t;
  return json.dump(-1, ' ', false, Handler::replace) + "\n";
}

}  // namespace driftless
