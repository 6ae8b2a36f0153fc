// SPDX-License-Identifier: Apache-2.0
#include "tools/cli/report_page.h"

#include <algorithm>

#include "tools/cli/cost_table.h"
#include "tools/compare/html.h"

namespace driftless::cli {
namespace {

constexpr std::size_t kMostListed = 50;  // failures
constexpr std::size_t kMostTensors = 30;
constexpr std::size_t kMostVersions = 200;
constexpr std::size_t kMostLines = 6;  // in a chart

std::string number(const PublicationId& id) { return std::to_string(id.version); }

void add_density(HtmlPage& page, const RunHistory& history) {
  HeatMap map;
  for (const DensityGroup& layer : history.layers) map.rows.push_back(layer.name);
  map.cells.resize(history.layers.size());
  for (const HistoryVersion& version : history.versions) {
    map.columns.push_back(number(version.found.id));
    for (std::size_t layer = 0; layer < map.rows.size(); ++layer) {
      map.cells[layer].push_back(
          version.by_layer.empty()
              ? std::nullopt
              : std::optional(ratio(version.by_layer[layer], history.layers[layer].total_units)));
    }
  }
  page.panel("Density by layer and version");
  const bool known = std::ranges::any_of(
      history.versions, [](const HistoryVersion& each) { return !each.by_layer.empty(); });
  if (!known) {
    page.paragraph("The changes by tensor are not known. Name the base of the run with --base.");
    return;
  }
  page.heat_map(map);
}

// The bits per change of each encoding, by version.
LineChart bits_chart(const RunHistory& history) {
  LineChart chart{{}, {}, "version", "bits per change"};
  for (const HistoryVersion& version : history.versions) {
    if (!version.costs.empty() && chart.series.empty()) {
      for (const EncodingCost& cost : version.costs) {
        chart.series.push_back({std::string(info(cost.encoding).name), {}});
      }
    }
  }
  for (const HistoryVersion& version : history.versions) {
    chart.x.push_back(number(version.found.id));
    for (std::size_t i = 0; i < chart.series.size(); ++i) {
      const bool known = !version.costs.empty() && version.costs[i].measured() &&
                         version.changed_units > 0 && !version.found.full();
      chart.series[i].values.push_back(
          known ? std::optional(8 * ratio(version.costs[i].bytes, version.changed_units))
                : std::nullopt);
    }
  }
  std::erase_if(chart.series, [](const LineChart::Series& each) {
    return std::ranges::none_of(each.values, [](const auto& value) { return value.has_value(); });
  });
  return chart;
}

void add_encodings(HtmlPage& page, const RunHistory& history) {
  const std::vector<EncodingCost> costs = total_costs(history);
  page.panel("What each encoding would have taken");
  if (costs.empty()) {
    page.paragraph("No version could be decoded. Name the base of the run with --base.");
    return;
  }
  std::uint64_t changed = 0;
  std::size_t versions = 0;
  for (const HistoryVersion& version : history.versions) {
    if (version.costs.empty()) continue;
    changed += version.changed_units;
    ++versions;
  }
  page.paragraph(concat(counted(versions, "version"),
                        ", together, as `driftless diff` writes "
                        "them. Encode times were measured here; seconds on a link are computed "
                        "from the bytes. Fastest, encode and link together: ",
                        fastest_text(costs), "."));
  TextTable table = cost_table(costs, changed);
  page.table(table.header, table.rows);
  page.paragraph(concat(
      "All weights, ", human_bytes(history.total_bytes),
      ", sent whole with every version: ", human_bytes(history.total_bytes * versions), "."));
  for (const std::string& line : unmeasured(costs)) page.paragraph("No " + line);
  const LineChart chart = bits_chart(history);
  if (!chart.series.empty()) page.lines(chart);
}

void add_tensors(HtmlPage& page, const RunHistory& history) {
  if (history.tensors_changed.empty()) return;
  page.panel("Tensors that change most");
  std::vector<DensityGroup> kinds;
  for (const DensityGroup& tensor : history.tensors_changed) {
    DensityGroup& kind = group_named(kinds, place_of_tensor(tensor.name).kind);
    kind.changed_units += tensor.changed_units;
    kind.total_units += tensor.total_units;
  }
  std::ranges::stable_sort(kinds, std::greater<>(), &DensityGroup::changed_units);
  std::vector<BarRow> bars;
  for (const DensityGroup& kind : kinds) {
    bars.push_back(
        {kind.name, static_cast<double>(kind.changed_units), std::to_string(kind.changed_units)});
  }
  page.bars({"kind of tensor", "changed weights, all versions", ""}, bars);
  const auto counted_versions = static_cast<std::uint64_t>(std::ranges::count_if(
      history.versions, [](const HistoryVersion& each) { return !each.by_layer.empty(); }));
  page.paragraph(concat("Changed weights of the ", counted(counted_versions, "version"),
                        " whose tensors are known, most first; % is the mean density of the tensor "
                        "in a version."));
  TextTable table{{"changed", "% a version", "in versions", "weights", "tensor"}, {}};
  for (const DensityGroup& tensor : history.tensors_changed) {
    if (table.rows.size() == kMostTensors) break;
    table.rows.push_back({std::to_string(tensor.changed_units),
                          percent(tensor.changed_units, tensor.total_units * counted_versions),
                          std::to_string(tensor.changed_tensors),
                          std::to_string(tensor.total_units), tensor.name});
  }
  page.table(table.header, table.rows);
}

void add_times(HtmlPage& page, const MetricsSummary& metrics) {
  page.panel("Where the time went");
  if (metrics.stages.empty()) {
    page.paragraph("The metrics files hold no times.");
    return;
  }
  std::vector<const StageSamples*> order;
  TextTable table{{"process", "stage", "records", "median ms", "slowest ms", "in version"}, {}};
  for (const StageSamples& stage : metrics.stages) {
    const auto slowest =
        std::ranges::max_element(stage.ms, {}, [](const auto& each) { return each.second; });
    order.push_back(&stage);
    table.rows.push_back({stage.role, stage.stage, std::to_string(stage.all.size()),
                          fixed(median_of(stage.all), 2), fixed(slowest->second, 2),
                          std::to_string(slowest->first)});
  }
  page.table(table.header, table.rows);
  std::ranges::stable_sort(order, std::greater<>(),
                           [](const StageSamples* each) { return median_of(each->all); });
  order.resize(std::min(order.size(), kMostLines));
  LineChart chart{{}, {}, "version", "ms"};
  std::map<std::uint64_t, bool> versions;
  for (const StageSamples* stage : order) {
    for (const auto& [version, ms] : stage->ms) versions[version] = true;
    chart.series.push_back({concat(stage->role, " ", stage->stage), {}});
  }
  for (const auto& [version, there] : versions) {
    chart.x.push_back(std::to_string(version));
    for (std::size_t i = 0; i < order.size(); ++i) {
      const auto at = order[i]->ms.find(version);
      chart.series[i].values.push_back(at != order[i]->ms.end() ? std::optional(at->second)
                                                                : std::nullopt);
    }
  }
  page.paragraph("The stages with the largest medians, the slowest process of each version, ms:");
  page.lines(chart);
}

void add_engines(HtmlPage& page, const MetricsSummary& metrics) {
  if (metrics.engines.empty()) return;
  page.panel("Engines");
  TextTable table{{"updates", "failed", "largest lag", "last version", "median pause ms",
                   "longest pause ms", "engine", "failures"},
                  {}};
  for (const EngineSummary& engine : metrics.engines) {
    std::string errors;
    for (const auto& [code, count] : engine.errors) {
      errors += concat(errors.empty() ? "" : ", ", count, " ", code);
    }
    const bool paused = !engine.pauses_ms.empty();
    table.rows.push_back({std::to_string(engine.updates), std::to_string(engine.failures),
                          std::to_string(engine.largest_lag), std::to_string(engine.version),
                          paused ? fixed(median_of(engine.pauses_ms), 2) : "-",
                          paused ? fixed(std::ranges::max(engine.pauses_ms), 2) : "-",
                          engine.engine, errors});
  }
  page.table(table.header, table.rows);
}

void add_settings(HtmlPage& page, const RunReport& report) {
  page.panel("Recommended settings");
  if (report.settings.empty()) {
    page.paragraph("Nothing can be concluded: no delta of this run was read.");
    return;
  }
  TextTable table{{"key", "value", "because"}, {}};
  for (const Recommendation& each : report.settings) {
    table.rows.push_back({each.key, each.value, each.why});
  }
  page.table(table.header, table.rows);
  page.code(report.yaml);
}

void add_versions(HtmlPage& page, const RunHistory& history) {
  page.panel("Versions");
  TextTable table{{"version", "base", "changed", "%", "payload", "encoding", "decoded"}, {}};
  const std::size_t from =
      history.versions.size() - std::min(history.versions.size(), kMostVersions);
  if (from > 0)
    page.paragraph(concat("The last ", kMostVersions, " of ", history.versions.size(), "."));
  for (std::size_t i = from; i < history.versions.size(); ++i) {
    const HistoryVersion& version = history.versions[i];
    table.rows.push_back(
        {number(version.found.id), std::to_string(version.found.base_version),
         std::to_string(version.changed_units), percent(version.changed_units, history.total_units),
         human_bytes(version.payload_bytes), std::string(info(version.found.encoding).name),
         version.replayed ? "proven" : "no"});
  }
  page.table(table.header, table.rows);
}

// For reports without versions: the figures from the trainer's lines.
void add_trained(HtmlPage& page, const MetricsSummary& metrics) {
  if (metrics.versions.empty()) return;
  LineChart density{{}, {{"density", {}}}, "version", "% of the weights"};
  LineChart bits{{}, {{"payload", {}}}, "version", "bits per change"};
  for (const auto& [version, each] : metrics.versions) {
    for (LineChart* chart : {&density, &bits}) chart->x.push_back(std::to_string(version));
    density.series[0].values.emplace_back(100 * each.density);
    bits.series[0].values.push_back(
        each.changed_units == 0 ? std::nullopt
                                : std::optional(8 * ratio(each.payload_bytes, each.changed_units)));
  }
  page.panel("Density by version, in % of the weights");
  page.lines(density);
  page.panel("Bits per change, as published");
  page.lines(bits);
}

void add_overview(HtmlPage& page, const RunReport& report) {
  const RunHistory& history = report.history;
  page.panel("Run");
  const std::vector<std::string> notes = report.notes();
  for (std::size_t i = 0; i < std::min(notes.size(), kMostListed); ++i) {
    page.verdict(Verdict::kWarn, notes[i]);
  }
  if (notes.size() > kMostListed) {
    page.verdict(Verdict::kWarn, concat(notes.size() - kMostListed, " more"));
  }
  std::vector<std::pair<std::string, std::string>> facts{{"run", report.run_id()}};
  if (!history.versions.empty()) {
    std::vector<double> density;
    std::uint64_t payload = 0;
    for (const HistoryVersion& version : history.versions) {
      payload += version.payload_bytes;
      if (!version.found.full())
        density.push_back(ratio(version.changed_units, history.total_units));
    }
    facts.insert(facts.end(),
                 {{"versions",
                   concat(history.versions.size(), " (", number(history.versions.front().found.id),
                          " to ", number(history.versions.back().found.id), ")")},
                  {"anchors", std::to_string(history.anchors)},
                  {"median density", fixed(100 * median_of(density), 3) + " %"},
                  {"all weights", human_bytes(history.total_bytes)},
                  {"payload of all versions", human_bytes(payload)}});
  }
  if (report.metrics) facts.emplace_back("metrics records", std::to_string(report.metrics->lines));
  page.facts(facts);
}

}  // namespace

std::string RunReport::run_id() const {
  if (!history.run.empty()) return history.run;
  return metrics && !metrics->run.empty() ? metrics->run : "unknown";
}

std::vector<std::string> RunReport::notes() const {
  std::vector<std::string> notes = history.notes;
  for (const LeftOutVersion& each : history.left_out) {
    notes.push_back(concat(to_string(each.id), ": ", each.why.to_string()));
  }
  if (!metrics) return notes;
  notes.insert(notes.end(), metrics->problems.begin(), metrics->problems.end());
  if (metrics->other_runs > 0) {
    notes.push_back(concat(counted(metrics->other_runs, "metrics record"), " of other runs"));
  }
  return notes;
}

std::string page_of(const RunReport& report) {
  HtmlPage page("Report of a run", report.source);
  add_overview(page, report);
  if (!report.history.versions.empty()) {
    add_density(page, report.history);
    add_encodings(page, report.history);
  } else if (report.metrics) {
    add_trained(page, *report.metrics);
  }
  if (report.metrics) {
    add_times(page, *report.metrics);
    add_engines(page, *report.metrics);
  }
  add_settings(page, report);
  add_tensors(page, report.history);
  if (!report.history.versions.empty()) add_versions(page, report.history);
  return page.finish();
}

}  // namespace driftless::cli
