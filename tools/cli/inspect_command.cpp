// SPDX-License-Identifier: Apache-2.0
#include <iostream>
#include <nlohmann/json.hpp>

#include "plugin/checkpoint/inspect.h"
#include "tools/cli/commands.h"

namespace driftless::cli {
Result<int> run_inspect(const Common& common, const std::string& path) {
  DRIFTLESS_ASSIGN_OR_RETURN(const Inspection result, inspect_path(posix_file_system(), path));
  if (common.json) {
    nlohmann::ordered_json json;
    json["kind"] = result.kind;
    for (const auto& [name, value] : result.facts) json[name] = value;
    json["rows"] = nlohmann::ordered_json::array();
    for (const auto& row : result.rows) {
      nlohmann::ordered_json item;
      for (std::size_t i = 0; i < row.size(); ++i) item[result.columns[i]] = row[i];
      json["rows"].push_back(std::move(item));
    }
    print_json(json);
    return int{kExitOk};
  }
  std::cout << path << ": " << result.kind << "\n";
  for (const auto& [name, value] : result.facts) {
    std::cout << "  " << name << ": " << (value.size() > 200 ? value.substr(0, 200) + "..." : value)
              << "\n";
  }
  if (!result.rows.empty()) {
    std::cout << "\n";
    print_table(result.columns, result.rows);
  }
  return int{kExitOk};
}

}  // namespace driftless::cli
