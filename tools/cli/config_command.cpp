// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>

#include "core/setting_values.h"
#include "kernels/host_kernels.h"
#include "plugin/job/config.h"
#include "plugin/job/job_process.h"
#include "tools/cli/commands.h"

namespace driftless::cli {
namespace {

// As a JSON value: its kind follows from what the key accepts. Sizes and durations keep their
// units.
nlohmann::ordered_json typed(std::string_view expected, const std::string& text) {
  if (expected.starts_with("true") && (text == "true" || text == "false")) {
    return text == "true";
  }
  return expected.starts_with("a whole number") || expected.starts_with("a number")
             ? number_or_text(text)
             : nlohmann::ordered_json(text);
}

// The row of "engines[0].url" is "engines[].url".
std::string row_name(std::string name) {
  if (const std::size_t open = name.find('['); open != std::string::npos) {
    name.erase(open + 1, name.find(']') - open - 1);
  }
  return name;
}

std::string_view expected_of(const std::string& name) {
  const ConfigKey* const key = config_table().find(row_name(name));
  return key == nullptr ? std::string_view() : key->expected;
}

// The default of every key, by its row: the value in a configuration that sets only this road.
std::map<std::string, std::string> defaults_beside(const Config& config) {
  Config plain;
  plain.road = config.road;
  plain.engines.emplace_back();
  // Replaces `auto`; a missing directory does not matter here.
  const Status ignored = complete_config(plain);
  std::map<std::string, std::string> defaults;
  for (const ConfigKey& key : config.table->keys()) {
    defaults.emplace(key.name, key.text(plain, 0));
  }
  defaults["road.kind"] = Config().road;
  return defaults;
}

// The meaning of an `auto` that is decided during the run.
std::string meaning(const Config& config, const std::string& key, const std::string& value) {
  if (key != "encoding" || !config.publisher.encoding_auto) return value;
  return concat("auto: ", info(config.publisher.encoding).name,
                " at first, then deltas, deltas_zstd or compact, whichever ends soonest");
}

void print_info_json() {
  nlohmann::ordered_json json;
  json["keys"] = nlohmann::ordered_json::array();
  for (const ConfigKey& key : config_table().keys()) {
    json["keys"].push_back({{"key", key.name},
                            {"default", typed(key.expected, key.default_value())},
                            {"value", key.expected},
                            {"help", key.help}});
  }
  json["backends"] = nlohmann::ordered_json::array();
  for (const Backend& backend : backends()) {
    nlohmann::ordered_json row = {
        {"name", backend.name}, {"built", backend.built}, {"help", backend.help}};
    if (!backend.built) row["why_not"] = backend.why_not;
    json["backends"].push_back(std::move(row));
  }
  json["kernels"] = nlohmann::ordered_json::array();
  for (const HostKernels& kernels : all_host_kernels()) json["kernels"].push_back(kernels.name);
  print_json(json);
}

std::string or_dash(const std::string& text) { return text.empty() ? "-" : text; }

}  // namespace

Result<int> run_config_check(const Common& common, const JobArguments& arguments, bool all) {
  DRIFTLESS_ASSIGN_OR_RETURN(const Config config, job_config(common, arguments));
  const auto settings = effective_settings(config);
  const std::map<std::string, std::string> defaults = defaults_beside(config);
  std::vector<std::vector<std::string>> changed, others;
  nlohmann::ordered_json json = {{"ok", true}, {"changed", nlohmann::ordered_json::array()}};
  for (const auto& [key, value] : settings) {
    const std::string meant = meaning(config, key, value);
    json["settings"][key] = typed(expected_of(key), without_users(value));
    if (meant != value) json["meaning"][key] = meant;
    const std::string& unset = defaults.at(row_name(key));
    if (value == unset) {
      others.push_back({key, or_dash(meant)});
    } else {
      changed.push_back({key, or_dash(meant), or_dash(unset)});
      json["changed"].push_back(key);
    }
  }
  if (common.json) {
    print_json(json);
    return int{kExitOk};
  }
  std::cout << arguments.config << ": ok\n\n";
  if (!changed.empty()) print_table({"key", "value", "default"}, changed);
  std::cout << (changed.empty() ? "" : "\n");
  if (!all) {
    std::cout << others.size() << " other keys have their defaults: --all shows them\n";
    return int{kExitOk};
  }
  print_table({"key", "value"}, others);
  return int{kExitOk};
}

Result<int> run_presign(const Common& common, const PresignArguments& arguments) {
  constexpr std::chrono::hours kLongest{7 * 24};
  DRIFTLESS_ASSIGN_OR_RETURN(const Config config, job_config(common, arguments.job));
  DRIFTLESS_ASSIGN_OR_RETURN(const auto valid, parse_duration(arguments.valid));
  if (valid < std::chrono::seconds(1) || valid > kLongest) {
    return error(StatusCode::kInvalidArgument, "--for ", arguments.valid,
                 ": a store signs for 1s to 168h (7 days)");
  }
  DRIFTLESS_ASSIGN_OR_RETURN(const Road* const road, find_road(road_table(), config));
  if (road->opener->share == nullptr) {
    return error(StatusCode::kUnsupported, "road.kind: ", config.road,
                 " is not opened by a URL; object_store is");
  }
  DRIFTLESS_ASSIGN_OR_RETURN(
      const std::string url,
      road->opener->share(config.road_options(), parts_of_manifest,
                          std::chrono::duration_cast<std::chrono::seconds>(valid)));
  if (common.json) {
    print_json({{"url", url}});
  } else {
    std::cout << url << "\n";
  }
  return int{kExitOk};
}

std::string version_text() {
  std::string text = concat("driftless ", DRIFTLESS_VERSION);
  for (const Backend& backend : backends()) {
    text += concat("\n  ", backend.name, ": ", backend.built ? "built" : "not built",
                   backend.built ? "" : concat(" (", backend.why_not, ")"));
  }
  return text;
}

Result<int> run_info(const Common& common) {
  if (common.json) {
    print_info_json();
    return int{kExitOk};
  }
  std::vector<std::vector<std::string>> rows;
  for (const ConfigKey& key : config_table().keys()) {
    rows.push_back({std::string(key.name), or_dash(key.default_value()), std::string(key.help)});
  }
  print_table({"key", "default", "help"}, rows);
  std::cout << "\n";
  rows.clear();
  for (const Backend& backend : backends()) {
    rows.push_back({backend.name, backend.built ? "built" : "not built",
                    backend.built ? backend.help : backend.why_not});
  }
  print_table({"backend", "", ""}, rows);
  std::cout << "\nkernels:";
  for (const HostKernels& kernels : all_host_kernels()) std::cout << " " << kernels.name;
  std::cout << " (the last is used)\n";
  return int{kExitOk};
}

}  // namespace driftless::cli
