// SPDX-License-Identifier: Apache-2.0
// MetricsSummary: a run's figures from the JSON lines of metrics.file: the time of every stage, by
// role, and how the engines followed. Lines come from any number of processes and files. A line
// that is no record is counted and reported, never used.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/file_system.h"

namespace driftless {

struct StageSamples {
  std::string role, stage;             // "rollout", "fetch"
  std::map<std::uint64_t, double> ms;  // by version: the slowest process's time
  std::vector<double> all;             // one for each line
};

struct EngineSummary {
  std::string engine;  // its URL
  std::uint64_t updates = 0, failures = 0, version = 0;
  std::uint64_t largest_lag = 0;  // versions behind the goal
  std::vector<double> pauses_ms;
  std::map<std::string, std::uint64_t> errors;  // by status code name
};

// A trainer's line: the figures of a version without its payload.
struct TrainedVersion {
  std::uint64_t changed_units = 0, payload_bytes = 0;
  double density = 0;
};

struct MetricsSummary {
  std::string run;  // hex
  std::uint64_t lines = 0, other_runs = 0;
  std::map<std::uint64_t, TrainedVersion> versions;
  std::vector<StageSamples> stages;  // in order of first appearance
  std::vector<EngineSummary> engines;
  std::uint64_t most_folded = 0;          // the most versions that a rollout folded into one commit
  std::vector<double> link_bits_per_s{};  // bytes fetched over fetch time
  std::vector<std::string> problems{};    // "file: line 7 is no record of metrics.file"
};

[[nodiscard]] double median_of(std::vector<double> values);  // 0 if empty

// `run`: only lines of this run count; empty: the run of the first line.
[[nodiscard]] Result<MetricsSummary> read_metrics(FileSystem& fs,
                                                  const std::vector<std::string>& files,
                                                  const std::string& run);

}  // namespace driftless
