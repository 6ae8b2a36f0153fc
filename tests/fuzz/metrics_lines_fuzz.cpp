// SPDX-License-Identifier: Apache-2.0
// Input: a file that metrics.file names. Both of its readers take it, that of `driftless status`
// and that of `driftless report`: lines that are no records are counted, and never end the reading.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "support/temp_dir.h"
#include "tools/compare/metrics_lines.h"
#include "tools/status/status_reader.h"

namespace {

constexpr std::size_t kMostRuns = 8;  // that are named

void require(bool holds) {
  if (!holds) std::abort();
}

// Two looks at an unchanged file see the same.
void read_for_status(const std::string& path) {
  using namespace driftless;
  const auto deadline = [] { return Deadline::after(std::chrono::minutes(1)); };
  const auto reader = make_metrics_reader({path});
  const auto first = reader->look(deadline()), second = reader->look(deadline());
  require(first.ok() == second.ok());
  if (!first.ok()) return;
  const auto printed = [](RunStatus status) {
    status.origin = {};
    return to_json(status).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  };
  require(printed(first->status) == printed(second->status));
  // The first damaged line with the number of others, and runs that are mixed with the one judged.
  require(first->damaged == second->damaged && first->damaged.size() <= 1 + kMostRuns);
  require(std::ranges::is_sorted(first->status.versions, {}, &VersionRecord::version));
  for (const std::string& each : problems(*first)) require(!each.empty());
}

void read_for_report(const std::string& path, std::uint64_t lines) {
  using namespace driftless;
  const auto found = read_metrics(posix_file_system(), {path}, "");
  require(found.ok() && found->lines + found->other_runs <= lines);
  for (const StageSamples& stage : found->stages) {
    require(!stage.ms.empty() && stage.ms.size() <= stage.all.size());
    for (const double ms : stage.all) require(std::isfinite(ms) && ms >= 0);
  }
  for (const double bits : found->link_bits_per_s) require(std::isfinite(bits) && bits > 0);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const driftless::testing::TempDir directory(driftless::testing::TempDir::Where::kMemory);
  const std::string path = directory.file("metrics.jsonl");
  std::ofstream(path, std::ios::binary | std::ios::trunc)
      .write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(size));
  read_for_status(path);
  read_for_report(path, static_cast<std::uint64_t>(1 + std::count(data, data + size, '\n')));
  return 0;
}
