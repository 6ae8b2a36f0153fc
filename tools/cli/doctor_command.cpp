// SPDX-License-Identifier: Apache-2.0
// driftless doctor: the checks of tools/doctor as a table.
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <iostream>
#include <nlohmann/json.hpp>

#include "core/stopwatch.h"
#include "tools/cli/commands.h"
#include "tools/doctor/doctor.h"

namespace driftless::cli {
namespace {

using doctor::Context;

constexpr std::chrono::milliseconds kAllChecks{9'000};

std::string program_path() {
  std::array<char, 4096> path{};
  const ssize_t size = ::readlink("/proc/self/exe", path.data(), path.size() - 1);
  return size > 0 ? std::string(path.data(), static_cast<std::size_t>(size)) : "driftless";
}

std::optional<std::string> variable(const char* name) {
  const char* const value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe)
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

Context context_of(const DoctorArguments& arguments) {
  Context context;
  context.deadline =
      Deadline::after(kAllChecks).unless([] { return StopSignals::received() != 0; });
  context.roads = &road_table();
  context.backends = backends();
  context.self = program_path();
  context.release = DRIFTLESS_VERSION;
  context.variables = variable;
  if (!arguments.python.empty()) context.python = arguments.python;
  const bool named = !arguments.job.config.empty();
  Result<Config> config =
      named ? load_config(posix_file_system(), arguments.job.config, arguments.job.set)
            : parse_config("road: { kind: mpi_rma }", "--set", arguments.job.set);
  context.configured = named && config.ok();
  context.config_status = config.status();
  if (config.ok()) context.config = std::move(*config);
  context.engines = context.config.engines;
  for (const std::string& url : arguments.engines) {
    context.engines.push_back({.url = url, .token_file = arguments.token_file});
  }
  return context;
}

std::size_t count(const std::vector<doctor::Row>& rows, FindingState state) {
  return static_cast<std::size_t>(std::ranges::count_if(
      rows, [&](const doctor::Row& row) { return row.finding.state == state; }));
}

void print(const std::vector<doctor::Row>& rows, double seconds) {
  std::vector<std::vector<std::string>> cells;
  std::string group;
  for (const doctor::Row& row : rows) {
    cells.push_back({row.group == group ? "" : row.group, row.finding.check,
                     std::string(to_string(row.finding.state)), row.finding.finding});
    group = row.group;
    if (!row.finding.next.empty()) cells.push_back({"", "", "", "-> " + row.finding.next});
  }
  print_table({"group", "check", "state", "finding, and -> the next action"}, cells);
  std::cout << "\n"
            << count(rows, FindingState::kFail) << " failed, "
            << counted(count(rows, FindingState::kWarn), "warning") << ", "
            << count(rows, FindingState::kOk) << " ok, " << count(rows, FindingState::kSkip)
            << " skipped; " << fixed(seconds, 1) << " s\n";
}

void print_rows_json(const std::vector<doctor::Row>& rows, double seconds) {
  nlohmann::ordered_json json;
  json["ok"] = count(rows, FindingState::kFail) == 0;
  json["seconds"] = seconds;
  json["checks"] = nlohmann::ordered_json::array();
  for (const auto& [group, finding] : rows) {
    json["checks"].push_back({{"group", group},
                              {"check", finding.check},
                              {"state", to_string(finding.state)},
                              {"finding", finding.finding},
                              {"next", finding.next}});
  }
  print_json(json);
}

}  // namespace

Result<int> run_doctor(const Common& common, const DoctorArguments& arguments) {
  if (arguments.mpi_probe) return doctor::run_mpi_probe(road_table());
  const StopSignals signals;
  Stopwatch watch;
  const Context context = context_of(arguments);
  const std::vector<doctor::Row> rows =
      doctor::run_checks(doctor::all_checks(context, arguments.only), context);
  if (context.deadline.stopped()) {
    return error(StatusCode::kDeadlineExceeded, "doctor: stopped by signal ",
                 StopSignals::received());
  }
  const double seconds = watch.lap_ms() / 1000;
  common.json ? print_rows_json(rows, seconds) : print(rows, seconds);
  return count(rows, FindingState::kFail) == 0 ? int{kExitOk} : int{kExitDifferent};
}

}  // namespace driftless::cli
