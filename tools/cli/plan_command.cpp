// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>

#include "core/file_system.h"
#include "tools/cli/commands.h"
#include "tools/plan/measure.h"

namespace driftless::cli {
namespace {

constexpr std::uint64_t kMostConfigBytes = std::uint64_t{1} << 20;
constexpr double kRdmaFrom = 100e9 / 8;  // --carrier auto

Result<int> print_measured(const PlanArguments& arguments, unsigned threads) {
  const ProgressBar bar("measuring");
  DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<Figure> measured,
                             measure_figures({.side_bytes = arguments.bytes, .threads = threads}));
  nlohmann::ordered_json json;
  for (const Figure& figure : measured) json[figure.name] = figure.value;
  print_json(json);
  return int{kExitOk};
}

Result<Figures> read_figures(const PlanArguments& arguments, Device device) {
  Figures figures = Figures::built_in(device);
  if (!arguments.figures.empty()) {
    DRIFTLESS_ASSIGN_OR_RETURN(const std::string text,
                               read_text(posix_file_system(), arguments.figures, kMostConfigBytes));
    DRIFTLESS_RETURN_IF_ERROR(figures.set_all(text, arguments.figures));
  }
  const std::pair<const char*, std::optional<double>> rates[] = {
      {"shared_fs.write", arguments.fs_write},
      {"shared_fs.read", arguments.fs_read},
      {"object_store.write", arguments.store_write},
      {"object_store.read", arguments.store_read}};
  for (const auto& [name, gigabytes] : rates) {
    if (!gigabytes) continue;
    DRIFTLESS_RETURN_IF_ERROR(figures.set(name, *gigabytes * 1e9, "an option"));
  }
  for (const std::string& each : arguments.set_figures) {
    DRIFTLESS_RETURN_IF_ERROR(figures.set_option(each));
  }
  return figures;
}

Result<ModelShape> read_model(const PlanArguments& arguments) {
  if (arguments.params) return model_shape(*arguments.params);
  if (arguments.model.empty()) {
    return error(StatusCode::kInvalidArgument, "--model or --params is required");
  }
  DRIFTLESS_ASSIGN_OR_RETURN(const std::string text,
                             read_text(posix_file_system(), arguments.model, kMostConfigBytes));
  return model_shape(text, arguments.model);
}

Result<PlanInput> read_input(const PlanArguments& arguments) {
  PlanInput input = arguments.input;
  input.fp8 = arguments.precision == "fp8";
  DRIFTLESS_ASSIGN_OR_RETURN(input.model, read_model(arguments));
  DRIFTLESS_ASSIGN_OR_RETURN(input.link_bytes_per_s, parse_link(arguments.link));
  input.device = arguments.device == "cpu" ? Device::kCpu : Device::kGpu;
  if (input.snapshot.empty()) {
    input.snapshot = input.device == Device::kCpu ? "host" : input.fp8 ? "device" : "none";
  }
  input.rdma = arguments.carrier == "rdma" ||
               (arguments.carrier == "auto" && input.link_bytes_per_s >= kRdmaFrom);
  input.hand_over = arguments.hand_over == "host_shm";
  input.engines_per_host =
      arguments.engines_per_host.value_or(8.0 / static_cast<double>(input.engine_tp));
  input.engines_per_host = std::min(input.engines_per_host, static_cast<double>(input.engines));
  DRIFTLESS_RETURN_IF_ERROR(check_plan(input));
  return input;
}

std::string seconds_text(double seconds) { return fixed(seconds, seconds < 10 ? 3 : 1); }

void print_table_of(const std::vector<PlanRow>& rows, std::vector<PlanQuantity> PlanRow::* columns,
                    const std::function<std::string(double)>& text, bool total) {
  std::vector<std::string> header = {"road", "encoding"};
  std::vector<std::vector<std::string>> lines;
  for (const PlanRow& row : rows) {
    if (!row.why_not.empty()) continue;
    std::vector<std::string> line = {std::string(row.road), std::string(info(row.encoding).name)};
    for (const PlanQuantity& quantity : row.*columns) {
      if (lines.empty()) header.emplace_back(quantity.name);
      line.push_back(text(quantity.amount.value()));
    }
    if (total) line.push_back(seconds_text(row.seconds) + (row.best ? " best" : ""));
    lines.push_back(std::move(line));
  }
  if (total) header.emplace_back("all");
  if (!lines.empty()) print_table(header, lines);
}

void print_formulae(const std::vector<PlanRow>& rows, const Figures& figures) {
  std::string all;
  for (const PlanRow& row : rows) {
    if (!row.why_not.empty()) continue;
    std::cout << "\n" << row.road << ", " << info(row.encoding).name << "\n";
    for (const auto* group : {&row.phases, &row.bytes, &row.memory}) {
      for (const auto& [name, amount] : *group) {
        const char* const unit = group == &row.phases ? "s" : "B";
        std::cout << "  " << name << " = " << with_prefix(amount.value(), unit) << " = "
                  << amount.formula() << "\n";
        all += amount.formula() + "\n";
      }
    }
  }
  std::cout << "\nFigures\n";
  for (const Figure& figure : figures.all()) {
    if (all.find(figure.name + " (") == std::string::npos) continue;
    std::cout << "  " << figure.name << " = " << with_prefix(figure.value, figure.unit) << "  ["
              << figure.source << "]\n";
  }
}

void print_text(const PlanInput& input, const Figures& figures, const std::vector<PlanRow>& rows,
                bool explain) {
  const auto bytes = [](double value) { return human_bytes(static_cast<std::uint64_t>(value)); };
  std::cout << "Predicted, not measured. " << input.model.family << ": "
            << with_prefix(static_cast<double>(input.model.weights), "") << " weights, "
            << with_prefix(static_cast<double>(input.model.experts), "") << " of them in experts; "
            << fixed(input.density * 100, 2) << " % change"
            << (input.fp8 ? concat("; ", with_prefix(static_cast<double>(input.model.matrices), ""),
                                   " are FP8 in blocks for the engines")
                          : "")
            << ". Seconds by phase:\n\n";
  print_table_of(rows, &PlanRow::phases, seconds_text, true);
  std::cout << "\nBytes of a version, and per host:\n\n";
  print_table_of(rows, &PlanRow::bytes, bytes, false);
  std::cout << "\nMemory beside the weights, per trainer rank; per worker (device) and per engine "
               "host (host):\n\n";
  print_table_of(rows, &PlanRow::memory, bytes, false);
  for (const PlanRow& row : rows) {
    if (row.why_not.empty()) continue;
    std::cout << "\nNot " << info(row.encoding).name << " over " << row.road << ": " << row.why_not;
  }
  std::cout << "\n";
  if (explain) print_formulae(rows, figures);
}

nlohmann::ordered_json to_json(const std::vector<PlanQuantity>& quantities, bool explain) {
  nlohmann::ordered_json json;
  for (const PlanQuantity& each : quantities) json[each.name] = each.amount.value();
  if (explain) {
    for (const PlanQuantity& each : quantities) json["formulae"][each.name] = each.amount.formula();
  }
  return json;
}

void print_plan_json(const PlanInput& input, const Figures& figures,
                     const std::vector<PlanRow>& rows, bool explain) {
  nlohmann::ordered_json json = {{"predicted", true},
                                 {"family", input.model.family},
                                 {"weights", input.model.weights},
                                 {"expert_weights", input.model.experts},
                                 {"precision", input.fp8 ? "fp8" : "bf16"},
                                 {"fp8_weights", input.fp8 ? input.model.matrices : 0},
                                 {"density", input.density},
                                 {"snapshot", input.snapshot},
                                 {"plans", nlohmann::ordered_json::array()}};
  for (const PlanRow& row : rows) {
    nlohmann::ordered_json each = {{"road", row.road}, {"encoding", info(row.encoding).name}};
    if (row.why_not.empty()) {
      each["seconds"] = row.seconds;
      each["best"] = row.best;
      each["phases"] = to_json(row.phases, explain);
      each["bytes"] = to_json(row.bytes, explain);
      each["memory_bytes"] = to_json(row.memory, explain);
    } else {
      each["why_not"] = row.why_not;
    }
    json["plans"].push_back(std::move(each));
  }
  for (const Figure& figure : figures.all()) {
    json["figures"][figure.name] = {
        {"value", figure.value}, {"unit", figure.unit}, {"source", figure.source}};
  }
  print_json(json);
}

}  // namespace

Result<int> run_plan(const Common& common, const PlanArguments& arguments) {
  if (arguments.measure) return print_measured(arguments, common.thread_count());
  DRIFTLESS_ASSIGN_OR_RETURN(const PlanInput input, read_input(arguments));
  DRIFTLESS_ASSIGN_OR_RETURN(const Figures figures, read_figures(arguments, input.device));
  std::optional<Encoding> encoding;
  if (!arguments.encoding.empty()) {
    DRIFTLESS_ASSIGN_OR_RETURN(encoding, parse_encoding(arguments.encoding));
  }
  const std::vector<PlanRow> rows = make_plan(input, figures, arguments.road, encoding);
  if (common.json) {
    print_plan_json(input, figures, rows, arguments.explain);
  } else {
    print_text(input, figures, rows, arguments.explain);
  }
  return int{kExitOk};
}

}  // namespace driftless::cli
