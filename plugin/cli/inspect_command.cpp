#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "plugin/cli/commands.h"
#include "plugin/inspect.h"

namespace driftless::cli {
namespace {

int run(const Common& common, const std::string& path) {
  const Result<Inspection> result = inspect_path(posix_file_system(), path);
  if (!result.ok()) return report(common, result.status());
  if (common.json) {
    nlohmann::ordered_json json;
    json["kind"] = result->kind;
    for (const auto& [name, value] : result->facts) json[name] = value;
    json["rows"] = nlohmann::ordered_json::array();
    for (const auto& row : result->rows) {
      nlohmann::ordered_json item;
      for (std::size_t i = 0; i < row.size(); ++i) item[result->columns[i]] = row[i];
      json["rows"].push_back(std::move(item));
    }
    print_json(json);
    return kExitOk;
  }
  std::cout << path << ": " << result->kind << "\n";
  for (const auto& [name, value] : result->facts) {
    std::cout << "  " << name << ": " << (value.size() > 200 ? value.substr(0, 200) + "..." : value)
              << "\n";
  }
  if (!result->rows.empty()) {
    std::cout << "\n";
    print_table(result->columns, result->rows);
  }
  return kExitOk;
}

}  // namespace

void add_inspect(CLI::App& app, const Common& common, Action& action) {
  auto path = std::make_shared<std::string>();
  CLI::App* command = app.add_subcommand(
      "inspect", "Show what a checkpoint, version, frame, flush file, manifest or journal holds");
  command->add_option("PATH", *path, "File or directory")->required();
  command->callback(
      [&common, &action, path] { action = [&common, path] { return run(common, *path); }; });
}

}  // namespace driftless::cli
