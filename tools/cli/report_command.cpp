// SPDX-License-Identifier: Apache-2.0
// `driftless report`: reads a run and its metrics, and writes one HTML file.
#include <algorithm>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>

#include "core/url_text.h"
#include "plugin/job/job_process.h"
#include "tools/cli/commands.h"
#include "tools/cli/cost_table.h"
#include "tools/cli/report_page.h"
#include "tools/compare/html.h"

namespace driftless::cli {
namespace {

constexpr std::chrono::milliseconds kPatience{60'000};  // for one part of a version

bool is_url(const std::string& run) { return run.find("://") != std::string::npos; }

// Opens the road that these settings choose, to read its content.
Result<std::unique_ptr<ReceiveRoad>> open_history(const std::vector<std::string>& settings) {
  DRIFTLESS_ASSIGN_OR_RETURN(const Config config,
                             parse_config("mode: delta\n", "report", settings));
  DRIFTLESS_ASSIGN_OR_RETURN(const Road* const row, find_road(road_table(), config));
  if (row->opener->history == nullptr) {
    return error(StatusCode::kUnsupported, "RUN: the road ", config.road_row(),
                 " cannot be read: it keeps no versions");
  }
  return row->opener->history(config.road_options());
}

// Whether the newest version is a single HDF5 file.
bool holds_hdf5(FileSystem& fs, const std::string& directory) {
  const auto versions = list_versions(fs, directory);
  return versions.ok() && !versions->empty() &&
         exists(fs, join_path(join_path(directory, version_directory_name(versions->back())),
                              kHdf5Name));
}

Result<std::unique_ptr<RunSource>> open_source(const ReportArguments& arguments, unsigned threads) {
  FileSystem& fs = posix_file_system();
  const std::string& run = arguments.run;
  std::vector<std::string> settings = arguments.job.set;
  if (is_url(run)) {
    settings.insert(settings.end(), {"road.kind=object_store", "road.object_store.url=" + run});
    DRIFTLESS_ASSIGN_OR_RETURN(std::unique_ptr<ReceiveRoad> road, open_history(settings));
    return open_road_source(std::move(road), "", kPatience, threads);
  }
  DRIFTLESS_RETURN_IF_ERROR(fs.info(join_path(run, ".")).status());
  if (!exists(fs, join_path(run, kRunInfoName))) return open_directory_source(fs, run, threads);
  settings.insert(settings.end(), {"road.kind=shared_fs", "road.shared_fs.dir=" + run});
  if (holds_hdf5(fs, run)) settings.emplace_back("road.layout=hdf5");
  DRIFTLESS_ASSIGN_OR_RETURN(std::unique_ptr<ReceiveRoad> road, open_history(settings));
  return open_road_source(std::move(road), run, kPatience, threads);
}

nlohmann::ordered_json to_json(const RunReport& report) {
  const RunHistory& history = report.history;
  nlohmann::ordered_json json{{"run", report.run_id()}, {"versions", history.versions.size()}};
  std::uint64_t changed = 0, replayed = 0;
  for (const HistoryVersion& version : history.versions) {
    replayed += version.replayed ? 1 : 0;
    changed += version.costs.empty() ? 0 : version.changed_units;
  }
  json["replayed"] = replayed;
  add_costs(json, total_costs(history), changed);
  json["left_out"] = nlohmann::ordered_json::array();
  for (const LeftOutVersion& each : history.left_out) {
    json["left_out"].push_back({{"version", each.id.version},
                                {"anchor", !is_version(each.id)},
                                {"code", to_string(each.why.code())},
                                {"message", each.why.message()}});
  }
  json["notes"] = report.notes();
  json["recommended"] = nlohmann::ordered_json::array();
  for (const Recommendation& each : report.settings) {
    json["recommended"].push_back({{"key", each.key}, {"value", each.value}, {"why", each.why}});
  }
  json["yaml"] = report.yaml;
  return json;
}

void print_text(const RunReport& report, const std::string& out) {
  const RunHistory& history = report.history;
  const bool recorded = history.versions.empty() && report.metrics;  // without a RUN
  const std::size_t versions = recorded ? report.metrics->versions.size() : history.versions.size();
  std::cout << out << ": run " << report.run_id() << ", " << counted(versions, "version")
            << (recorded ? " in the metrics" : "");
  if (!history.left_out.empty()) {
    std::cout << ", " << history.left_out.size() << " not decoded";
  }
  std::cout << "\n";
  const std::vector<EncodingCost> costs = total_costs(history);
  for (const EncodingCost& cost : costs) {
    if (!cost.measured()) continue;
    std::cout << "  " << info(cost.encoding).name << ": " << human_bytes(cost.bytes) << "\n";
  }
  for (const Recommendation& each : report.settings) {
    std::cout << "recommended: " << each.key << ": " << each.value << "\n";
  }
}

}  // namespace

Result<int> run_report(const Common& common, const ReportArguments& arguments) {
  end_if_files_shrink();
  FileSystem& fs = posix_file_system();
  if (arguments.run.empty() && arguments.metrics.empty()) {
    return error(StatusCode::kInvalidArgument,
                 "report: name a RUN, or the files that metrics.file wrote with --metrics");
  }
  DRIFTLESS_RETURN_IF_ERROR(check_page(fs, arguments.out, arguments.force));
  RunReport report;
  report.source = is_url(arguments.run) ? public_url(arguments.run) : arguments.run;
  if (!arguments.run.empty()) {
    DRIFTLESS_ASSIGN_OR_RETURN(const std::unique_ptr<RunSource> source,
                               open_source(arguments, common.thread_count()));
    ProgressBar bar("replaying");
    HistoryOptions options;
    options.base = arguments.base;
    options.threads = common.thread_count();
    options.progress = bar.callback();
    DRIFTLESS_ASSIGN_OR_RETURN(report.history, read_history(fs, *source, options));
  }
  if (!arguments.metrics.empty()) {
    DRIFTLESS_ASSIGN_OR_RETURN(report.metrics,
                               read_metrics(fs, arguments.metrics, report.history.run));
  }
  report.settings = recommend(report.history, report.metrics ? &*report.metrics : nullptr);
  if (!report.settings.empty()) {
    const std::string directory =
        is_url(arguments.run) ? std::string() : std::filesystem::absolute(arguments.run).string();
    report.yaml = to_yaml(report.settings, directory, report.history.versions.back().found.layout);
  }
  DRIFTLESS_RETURN_IF_ERROR(write_page(fs, arguments.out, page_of(report), arguments.force));
  for (const std::string& note : report.notes()) std::cerr << "driftless: note: " << note << "\n";
  if (common.json) {
    print_json(to_json(report));
  } else {
    print_text(report, arguments.out);
  }
  return int{kExitOk};
}

}  // namespace driftless::cli
