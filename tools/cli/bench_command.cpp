// SPDX-License-Identifier: Apache-2.0
#include <nlohmann/json.hpp>

#include "tools/cli/commands.h"

namespace driftless::cli {
namespace {

void print_report(const Common& common, const BenchReport& measured) {
  if (common.json) {
    nlohmann::ordered_json json;
    for (const BenchFigure& figure : measured.figures) {
      json[figure.name] = figure.value ? nlohmann::ordered_json(*figure.value) : nullptr;
    }
    print_json(json);
    return;
  }
  std::vector<std::vector<std::string>> rows;
  for (const BenchFigure& figure : measured.figures) {
    rows.push_back(
        {figure.name, figure.value ? fixed(*figure.value, 2) : "-", figure.unit, figure.detail});
  }
  print_table({"figure", "value", "unit", "what"}, rows);
}

}  // namespace

Result<int> run_bench_command(const Common& common, BenchArguments options) {
  BenchReport measured;
  if (!options.trace.empty()) {
    DRIFTLESS_ASSIGN_OR_RETURN(measured, measure_trace(options.trace, common.thread_count()));
  }
  if (options.trace.empty() || options.all) {
    options.bench.threads = common.thread_count();
    DRIFTLESS_ASSIGN_OR_RETURN(const BenchReport speed, run_bench(options.bench));
    measured.figures.insert(measured.figures.begin(), speed.figures.begin(), speed.figures.end());
  }
  print_report(common, measured);
  return int{kExitOk};
}

}  // namespace driftless::cli
