// SPDX-License-Identifier: Apache-2.0
// `driftless compare`: what changed between two checkpoints, as text, JSON and an HTML file.
#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>

#include "core/line_log.h"
#include "tools/cli/commands.h"
#include "tools/cli/cost_table.h"
#include "tools/compare/checkpoint_comparison.h"
#include "tools/compare/html.h"

namespace driftless::cli {
namespace {

constexpr std::size_t kShownTensors = 20;
constexpr std::size_t kPageTensors = 500;  // without --all
constexpr std::string_view kLinksNote =
    "Seconds on a link are computed from the bytes alone; encode times were measured here.";

std::string one_ulp_share(const UlpCounts& ulps) {
  return ulps.changed == 0 ? "-" : fixed(100 * ratio(ulps.one, ulps.changed), 2);
}

TextTable tensor_table(const CheckpointComparison& found, std::size_t most) {
  TextTable table{{"changed", "of", "%", "1 ULP %", "largest ULP", "type", "tensor"}, {}};
  std::vector<std::size_t> order = found.most_changed();
  if (order.size() > most) order.resize(most);
  for (const std::size_t i : order) {
    const ComparedTensor& tensor = found.tensors[i];
    table.rows.push_back({std::to_string(tensor.changed_units), std::to_string(tensor.spec.units()),
                          percent(tensor.changed_units, tensor.spec.units()),
                          one_ulp_share(tensor.ulps),
                          tensor.ulps.changed == 0 ? "-" : std::to_string(tensor.ulps.largest),
                          std::string(info(tensor.spec.dtype).name), tensor.spec.name});
  }
  return table;
}

TextTable group_table(std::string_view word, const std::vector<DensityGroup>& groups) {
  TextTable table{{"changed", "of", "%", "changed tensors", "of tensors", std::string(word)}, {}};
  for (const DensityGroup& group : groups) {
    table.rows.push_back({std::to_string(group.changed_units), std::to_string(group.total_units),
                          percent(group.changed_units, group.total_units),
                          std::to_string(group.changed_tensors), std::to_string(group.tensors),
                          group.name});
  }
  return table;
}

TextTable difference_table(const CheckpointComparison& found) {
  TextTable table{{"tensor", "in OLD", "in NEW"}, {}};
  const auto shown = [](const std::string& spec) { return spec.empty() ? "not there" : spec; };
  for (const LayoutDifference& each : found.layout_differences) {
    table.rows.push_back({each.tensor, shown(each.before), shown(each.after)});
  }
  return table;
}

std::string verdict(const CheckpointComparison& found) {
  const std::string common =
      concat(counted(found.tensors.size(), "tensor"), ", ", human_bytes(found.total_bytes));
  if (found.identical()) return concat("identical: ", common);
  std::string text =
      found.layout_differences.empty()
          ? std::string()
          : concat("different layouts: ", counted(found.layout_differences.size(), "tensor"),
                   " not the same in the two; of the others, ");
  return text + concat(found.changed_units, " of ", found.total_units, " weights changed (",
                       percent(found.changed_units, found.total_units), " %) in ",
                       found.changed_tensors, " of ", common);
}

// Empty if no changed tensor has a type with ULPs.
std::string ulp_text(const UlpCounts& ulps) {
  if (ulps.changed == 0) return {};
  return concat(one_ulp_share(ulps), " % of the changes of floats are 1 ULP; the largest is ",
                ulps.largest, " ULP");
}

std::vector<std::string> file_lines(const CompanionDifferences& files) {
  std::vector<std::string> lines;
  const auto add = [&lines](std::string_view what, const std::vector<std::string>& names) {
    for (const std::string& name : names) lines.push_back(concat(what, ": ", name));
  };
  add("different content", files.others);
  add("only in OLD", files.here_alone);
  add("only in NEW", files.there_alone);
  add("not compared", files.not_compared);
  return lines;
}

nlohmann::ordered_json to_json(const std::vector<DensityGroup>& groups) {
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const DensityGroup& group : groups) {
    json.push_back({{"name", group.name},
                    {"tensors", group.tensors},
                    {"changed_tensors", group.changed_tensors},
                    {"changed_units", group.changed_units},
                    {"total_units", group.total_units},
                    {"density", ratio(group.changed_units, group.total_units)}});
  }
  return json;
}

void add_ulps(nlohmann::ordered_json& json, const UlpCounts& ulps) {
  if (ulps.changed == 0) return;
  json["one_ulp_share"] = ratio(ulps.one, ulps.changed);
  json["largest_ulp"] = ulps.largest;
}

nlohmann::ordered_json to_json(const CheckpointComparison& found) {
  nlohmann::ordered_json json{{"old", found.before},
                              {"new", found.after},
                              {"identical", found.identical()},
                              {"tensors", found.tensors.size()},
                              {"bytes", found.total_bytes},
                              {"changed_tensors", found.changed_tensors},
                              {"changed_units", found.changed_units},
                              {"total_units", found.total_units},
                              {"density", ratio(found.changed_units, found.total_units)}};
  add_ulps(json, found.ulps);
  json["changed"] = nlohmann::ordered_json::array();
  for (const std::size_t i : found.most_changed()) {
    const ComparedTensor& tensor = found.tensors[i];
    nlohmann::ordered_json row{{"tensor", tensor.spec.name},
                               {"dtype", info(tensor.spec.dtype).name},
                               {"changed_units", tensor.changed_units},
                               {"total_units", tensor.spec.units()},
                               {"density", ratio(tensor.changed_units, tensor.spec.units())}};
    add_ulps(row, tensor.ulps);
    json["changed"].push_back(std::move(row));
  }
  json["layers"] = to_json(found.layers);
  json["kinds"] = to_json(found.kinds);
  add_costs(json, found.costs, found.changed_units);
  json["layout_differences"] = nlohmann::ordered_json::array();
  for (const LayoutDifference& each : found.layout_differences) {
    json["layout_differences"].push_back(
        {{"tensor", each.tensor}, {"old", each.before}, {"new", each.after}});
  }
  json["other_files"] = {{"different", found.files.others},
                         {"only_old", found.files.here_alone},
                         {"only_new", found.files.there_alone},
                         {"not_compared", found.files.not_compared}};
  json["threads"] = found.threads;
  json["seconds"] = found.seconds;
  json["notes"] = found.notes;
  return json;
}

void print(const TextTable& table) {
  std::cout << "\n";
  print_table(table.header, table.rows);
}

void print_text(const CheckpointComparison& found, bool all) {
  std::cout << verdict(found) << "\n";
  if (!found.layout_differences.empty()) print(difference_table(found));
  if (found.changed_units > 0) {
    std::cout << ulp_text(found.ulps) << "\n";
    const std::size_t most = all ? found.tensors.size() : kShownTensors;
    print(tensor_table(found, most));
    if (found.changed_tensors > most) {
      std::cout << "and " << counted(found.changed_tensors - most, "more tensor")
                << ": --all shows all\n";
    }
    print(group_table("layer", found.layers));
    print(group_table("kind", found.kinds));
    print(cost_table(found.costs, found.changed_units));
    for (const std::string& line : unmeasured(found.costs)) std::cout << "no " << line << "\n";
    std::cout << "fastest, encode and link together: " << fastest_text(found.costs) << "\n"
              << kLinksNote << " Threads: " << found.threads << ".\n";
  }
  const std::vector<std::string> files = file_lines(found.files);
  if (!files.empty()) std::cout << "\n";
  for (const std::string& line : files) {
    std::cout << "beside the weights: " << one_line(line) << "\n";
  }
}

void add_changes(HtmlPage& page, const CheckpointComparison& found, bool all) {
  page.panel("Encodings");
  page.paragraph(concat("Fastest, encode and link together: ", fastest_text(found.costs), ". ",
                        kLinksNote, " Threads: ", found.threads, "."));
  const TextTable costs = cost_table(found.costs, found.changed_units);
  page.table(costs.header, costs.rows);
  for (const std::string& line : unmeasured(found.costs)) page.paragraph("No " + line);
  for (const auto& [word, groups] :
       {std::pair("layer", &found.layers), std::pair("kind of tensor", &found.kinds)}) {
    std::vector<BarRow> bars;
    for (const DensityGroup& group : *groups) {
      bars.push_back({group.name, ratio(group.changed_units, group.total_units),
                      percent(group.changed_units, group.total_units) + " %"});
    }
    page.panel(concat("Density by ", word));
    page.bars({word, "changed", ""}, bars);
  }
  page.panel("Tensors that changed");
  const std::size_t most = all ? found.tensors.size() : kPageTensors;
  if (found.changed_tensors > most) {
    page.paragraph(concat("The ", most, " with the most changed weights of ", found.changed_tensors,
                          ". --all shows all."));
  }
  const TextTable tensors = tensor_table(found, most);
  page.table(tensors.header, tensors.rows);
}

std::string page_of(const CheckpointComparison& found, bool all) {
  HtmlPage page("Two checkpoints compared", concat(found.before, " and ", found.after));
  page.panel("Result");
  page.verdict(found.layout_differences.empty()
                   ? (found.identical() ? Verdict::kOk : Verdict::kIdle)
                   : Verdict::kWarn,
               verdict(found));
  std::vector<std::pair<std::string, std::string>> facts{
      {"changed weights", std::to_string(found.changed_units)},
      {"density", percent(found.changed_units, found.total_units) + " %"},
      {"changed tensors", concat(found.changed_tensors, " of ", found.tensors.size())},
      {"all weights", human_bytes(found.total_bytes)}};
  if (found.ulps.changed > 0) {
    facts.emplace_back("changes of 1 ULP", one_ulp_share(found.ulps) + " %");
    facts.emplace_back("largest change", concat(found.ulps.largest, " ULP"));
  }
  page.facts(facts);
  if (!found.layout_differences.empty()) {
    page.panel("Tensors that are not the same in the two");
    const TextTable table = difference_table(found);
    page.table(table.header, table.rows);
  }
  if (found.changed_units > 0) add_changes(page, found, all);
  page.panel("Files beside the weights");
  const std::vector<std::string> files = file_lines(found.files);
  if (files.empty()) page.paragraph("No difference.");
  for (const std::string& line : files) page.paragraph(line);
  for (const std::string& note : found.notes) page.paragraph(note);
  return page.finish();
}

}  // namespace

Result<int> run_compare(const Common& common, const CompareArguments& arguments) {
  end_if_files_shrink();
  FileSystem& fs = posix_file_system();
  const bool html = !arguments.html.empty();
  if (html) DRIFTLESS_RETURN_IF_ERROR(check_page(fs, arguments.html, arguments.force));
  ProgressBar bar("comparing");
  DRIFTLESS_ASSIGN_OR_RETURN(
      const CheckpointComparison found,
      compare_two(fs, {arguments.before, arguments.after, common.thread_count(), bar.callback()}));
  if (html) {
    DRIFTLESS_RETURN_IF_ERROR(
        write_page(fs, arguments.html, page_of(found, arguments.all), arguments.force));
  }
  for (const std::string& note : found.notes) std::cerr << "driftless: note: " << note << "\n";
  if (common.json) {
    print_json(to_json(found));
  } else {
    print_text(found, arguments.all);
  }
  return found.layout_differences.empty() ? int{kExitOk} : int{kExitDifferent};
}

}  // namespace driftless::cli
