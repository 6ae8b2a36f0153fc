// SPDX-License-Identifier: Apache-2.0
#include "tools/compare/metrics_lines.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/counted.h"
#include "core/version.h"

namespace driftless {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kMaxLineBytes = std::size_t{1} << 20;
constexpr std::size_t kMaxDepth = 8;
constexpr std::size_t kMostEngines = 10'000, kMostStages = 200, kMostProblems = 20;
constexpr std::string_view kTime = "_ms";

// Whether this key is the time of a stage: some other keys are times, too.
bool is_stage(std::string_view key) {
  return key.ends_with(kTime) && key != "monotonic_ms" && key.size() > kTime.size();
}

std::uint64_t count_in(const Json& line, const char* key) {
  const auto at = line.find(key);
  return at != line.end() && at->is_number_unsigned() ? at->get<std::uint64_t>() : 0;
}
double number_in(const Json& line, const char* key) {
  const auto at = line.find(key);
  return at != line.end() && at->is_number() ? std::max(0.0, at->get<double>()) : 0;
}
std::string text_in(const Json& line, const char* key) {
  const auto at = line.find(key);
  return at != line.end() && at->is_string() ? at->get<std::string>() : std::string();
}

// Whether the figures are plausible: no time exceeds 30 years, and no count the highest version
// number. Larger figures could make the page's sums infinite.
bool is_plausible(const Json& line) {
  constexpr double kMostMs = 1e12;
  for (const auto& [key, value] : line.items()) {
    if (!value.is_number()) continue;
    const double most = is_stage(key)      ? kMostMs
                        : key == "density" ? 1.0
                                           : static_cast<double>(kMaxVersion);
    if (value.get<double>() > most) return false;
  }
  return true;
}

// Nothing if the line is no record.
std::optional<Json> parse_line(std::string_view text) {
  if (text.size() > kMaxLineBytes) return std::nullopt;
  const auto shallow = [](int depth, Json::parse_event_t, Json&) {
    return depth <= static_cast<int>(kMaxDepth);
  };
  Json line = Json::parse(text, shallow, false);
  const bool whole = line.is_object() && line.contains("role") && line["role"].is_string() &&
                     line.contains("run") && line["run"].is_string() && line.contains("version") &&
                     line["version"].is_number_unsigned() && is_plausible(line);
  return whole ? std::optional(std::move(line)) : std::nullopt;
}

// Null if there are too many stages already.
StageSamples* stage_named(std::vector<StageSamples>& all, const std::string& role,
                          const std::string& stage) {
  const auto at = std::ranges::find_if(
      all, [&](const StageSamples& each) { return each.role == role && each.stage == stage; });
  if (at != all.end()) return &*at;
  return all.size() < kMostStages ? &all.emplace_back(StageSamples{role, stage, {}, {}}) : nullptr;
}

class MetricsReader {
 public:
  explicit MetricsReader(const std::string& run) { found_.run = run; }

  void read(const std::string& path, std::string_view text) {
    std::size_t number = 0;
    std::uint64_t bad = 0, first_bad = 0;
    while (!text.empty()) {
      const std::size_t end = std::min(text.find('\n'), text.size());
      const std::string_view line = text.substr(0, end);
      const bool whole = end < text.size();
      text.remove_prefix(std::min(end + 1, text.size()));
      ++number;
      if (line.empty()) continue;
      const std::optional<Json> json = parse_line(line);
      if (json) {
        add(*json);
      } else if (whole && bad++ == 0) {  // a line without an end is still being written
        first_bad = number;
      }
    }
    if (bad == 0 || found_.problems.size() >= kMostProblems) return;
    found_.problems.push_back(concat(path, ": ", bad, " of ", counted(number, "line"),
                                     " without a record of metrics.file, the first is line ",
                                     first_bad));
  }
  MetricsSummary finish() { return std::move(found_); }

 private:
  void add(const Json& line) {
    const std::string run = text_in(line, "run");
    if (line.contains("event")) return;  // the result of a command
    if (found_.run.empty()) found_.run = run;
    if (run != found_.run) {
      ++found_.other_runs;
      return;
    }
    ++found_.lines;
    if (line.contains("engine")) {
      add_engine(line);
    } else {
      add_version(line);
    }
  }

  void add_version(const Json& line) {
    const std::uint64_t version = count_in(line, "version");
    const std::string role = text_in(line, "role");
    add_stages(line, role, version);
    if (role == "trainer") {
      found_.versions[version] = {count_in(line, "changed_units"), count_in(line, "delta_bytes"),
                                  number_in(line, "density")};
      return;
    }
    found_.most_folded = std::max(found_.most_folded, count_in(line, "versions"));
    const double seconds = number_in(line, "fetch_ms") / 1000;
    const auto bytes = static_cast<double>(count_in(line, "wire_bytes"));
    constexpr double kLeastSeconds = 1e-6;  // a shorter time is no measurement
    if (seconds >= kLeastSeconds && bytes > 0)
      found_.link_bits_per_s.push_back(8 * bytes / seconds);
  }

  void add_engine(const Json& line) {
    const std::string name = text_in(line, "engine");
    auto at = std::ranges::find(found_.engines, name, &EngineSummary::engine);
    if (at == found_.engines.end()) {
      if (found_.engines.size() >= kMostEngines) return;
      at = found_.engines.emplace(at);
      at->engine = name;
    }
    const std::uint64_t version = count_in(line, "version"), goal = count_in(line, "goal");
    ++at->updates;
    at->version = std::max(at->version, version);
    at->largest_lag = std::max(at->largest_lag, goal > version ? goal - version : 0);
    const std::string status = text_in(line, "status");
    if (status != "ok") {
      ++at->failures;
      ++at->errors[status];
      return;
    }
    at->pauses_ms.push_back(number_in(line, "pause_ms"));
    add_stages(line, "engine", goal);
  }

  void add_stages(const Json& line, const std::string& role, std::uint64_t version) {
    for (const auto& [key, value] : line.items()) {
      if (!is_stage(key) || !value.is_number()) continue;
      const double ms = std::max(0.0, value.get<double>());
      StageSamples* const stage =
          stage_named(found_.stages, role, key.substr(0, key.size() - kTime.size()));
      if (stage == nullptr) continue;
      double& slowest = stage->ms[version];
      slowest = std::max(slowest, ms);
      stage->all.push_back(ms);
    }
  }

  MetricsSummary found_;
};

}  // namespace

double median_of(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

Result<MetricsSummary> read_metrics(FileSystem& fs, const std::vector<std::string>& files,
                                    const std::string& run) {
  MetricsReader reader(run);
  for (const std::string& path : files) {
    DRIFTLESS_ASSIGN_OR_RETURN(const MappedFile file, fs.map(path));
    reader.read(path, {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()});
  }
  MetricsSummary found = reader.finish();
  if (found.lines == 0 && found.problems.empty()) {
    found.problems.push_back("the metrics files hold no record of this run");
  }
  return found;
}

}  // namespace driftless
