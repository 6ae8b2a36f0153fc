// SPDX-License-Identifier: Apache-2.0
#include <fstream>
#include <nlohmann/json.hpp>

#include "bench/numpy_rival_source.h"
#include "collectives/shared_fs/visibility_hook.h"
#include "core/file_system.h"
#include "formats/strict_json.h"
#include "tools/bench/measure.h"
#include "tools/memory_file.h"

namespace driftless::bench {
namespace {

constexpr std::chrono::seconds kImportLimit{60};
constexpr std::chrono::minutes kRunLimit{30};
constexpr std::uint64_t kMaxOutputBytes = std::uint64_t{1} << 20;

Status fill(const MemoryFile& file, std::span<const std::byte> bytes) {
  std::ofstream out(file.path(), std::ios::binary);
  out.write(reinterpret_cast<const char*>(bytes.data()),
            static_cast<std::streamsize>(bytes.size()));
  if (out.flush()) return {};
  return error(StatusCode::kNoSpace, "a file of ", bytes.size(), " bytes in memory");
}

// Runs `source`; its output is discarded unless `arguments` redirect it.
Status run_python(const std::string& python, const std::string& source, std::string_view arguments,
                  std::chrono::milliseconds limit) {
  return shared_fs::run_hook({"bench",
                              concat(R"("$DRIFTLESS_PYTHON" -c "$DRIFTLESS_SOURCE")", arguments),
                              {{"DRIFTLESS_PYTHON", python}, {"DRIFTLESS_SOURCE", source}}},
                             limit, Deadline::after(limit));
}

// The first Python that has both packages, otherwise the first that has numpy.
Result<std::string> find_python(const std::string& wanted) {
  std::vector<std::string> candidates{"python3", "/usr/bin/python3"};
  if (!wanted.empty()) candidates = {wanted};
  std::string reasons;
  for (const char* packages : {"numpy, zstandard", "numpy"}) {
    for (const std::string& python : candidates) {
      const Status status = run_python(python, concat("import ", packages), "", kImportLimit);
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
  const MemoryFile old_file, new_file, output;
  DRIFTLESS_RETURN_IF_ERROR(fill(old_file, data.old_bytes()));
  DRIFTLESS_RETURN_IF_ERROR(fill(new_file, data.new_bytes()));
  const Status ran = run_python(found, kNumpyRivalSource,
                                concat(" ", old_file.path(), " ", new_file.path(), " ", kTensors,
                                       " ", threads, " ", repeats, " > ", output.path()),
                                kRunLimit);
  if (!ran.ok()) return error(StatusCode::kUnsupported, found, ": ", ran.message());
  DRIFTLESS_ASSIGN_OR_RETURN(const std::string text,
                             read_text(posix_file_system(), output.path(), kMaxOutputBytes));
  return parse(text);
}

}  // namespace driftless::bench
