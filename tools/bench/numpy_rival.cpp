// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/numpy_rival.h"

#include <nlohmann/json.hpp>

#include "bench/numpy_rival_source.h"
#include "formats/strict_json.h"
#include "tools/bench/child_process.h"

namespace driftless::bench {
namespace {

constexpr std::chrono::seconds kImportLimit{60};
constexpr std::chrono::minutes kRunLimit{30};

std::string last_line(std::string_view text) {
  while (text.ends_with('\n')) text.remove_suffix(1);
  return std::string(text.substr(text.rfind('\n') + 1));
}

// Ok where this Python has the packages.
Status check_python(const std::string& python, const std::string& packages) {
  DRIFTLESS_ASSIGN_OR_RETURN(const ProgramResult result,
                             run_program({python, "-c", "import " + packages}, {}, kImportLimit));
  if (result.exit_code == 0) return {};
  return error(StatusCode::kUnsupported, python, ": ", shown(last_line(result.errors), 200));
}

// The first that has both packages, or else the first that has numpy at least.
Result<std::string> find_python(const std::string& wanted) {
  std::vector<std::string> candidates{"python3", "/usr/bin/python3"};
  if (!wanted.empty()) candidates = {wanted};
  std::string reasons;
  for (const char* packages : {"numpy, zstandard", "numpy"}) {
    for (const std::string& python : candidates) {
      const Status status = check_python(python, packages);
      if (status.ok()) return python;
      reasons += concat(reasons.empty() ? "" : "; ", status.message());
    }
  }
  return error(StatusCode::kUnsupported, "no Python with numpy: ", reasons);
}

Result<RivalTimes> parse(const std::string& output) {
  constexpr std::string_view kWhat = "the output of numpy_rival.py";
  DRIFTLESS_ASSIGN_OR_RETURN(const Json report, parse_json(output, kWhat));
  RivalTimes times;
  DRIFTLESS_ASSIGN_OR_RETURN(times.description, json_string(report, "what", kWhat));
  DRIFTLESS_ASSIGN_OR_RETURN(times.changed, json_u64(report, "changed", kWhat));
  DRIFTLESS_ASSIGN_OR_RETURN(const Json* const seconds, json_member(report, "seconds", kWhat));
  for (const auto& [name, repeats] : seconds->items()) {
    std::vector<double> values;
    for (const Json& value : repeats) {
      if (value.is_number()) values.push_back(value.get<double>());
    }
    if (values.empty()) return error(StatusCode::kCorrupt, kWhat, ": no times of '", name, "'");
    times.timings.push_back({name, median(values)});
  }
  return times;
}

}  // namespace

Result<RivalTimes> measure_rival(const BenchData& data, unsigned threads, unsigned repeats,
                                 const std::string& python) {
  DRIFTLESS_ASSIGN_OR_RETURN(const std::string found, find_python(python));
  DRIFTLESS_ASSIGN_OR_RETURN(MemoryFile old_file, MemoryFile::create());
  DRIFTLESS_ASSIGN_OR_RETURN(MemoryFile new_file, MemoryFile::create());
  DRIFTLESS_RETURN_IF_ERROR(old_file.write(data.old_side.bytes()));
  DRIFTLESS_RETURN_IF_ERROR(new_file.write(data.new_side.bytes()));
  DRIFTLESS_ASSIGN_OR_RETURN(const ProgramResult result,
                             run_program({found, "-c", kNumpyRivalSource, std::to_string(kTensors),
                                          std::to_string(threads), std::to_string(repeats)},
                                         {&old_file, &new_file}, kRunLimit));
  if (result.exit_code != 0) {
    return error(StatusCode::kUnsupported, found, " ended with ", result.exit_code, ": ",
                 shown(last_line(result.errors), 200));
  }
  return parse(result.output);
}

}  // namespace driftless::bench
