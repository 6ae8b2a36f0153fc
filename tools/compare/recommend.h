// SPDX-License-Identifier: Apache-2.0
// Recommends settings for runs like the one that was read, each with the figure on which it is
// based.
#pragma once

#include "tools/compare/metrics_lines.h"
#include "tools/compare/run_history.h"

namespace driftless {

struct Recommendation {
  std::string key, value;  // of the configuration
  std::string why;
};

// Sums the costs of all versions. An encoding that is missing in one version counts as not
// measured.
[[nodiscard]] std::vector<EncodingCost> total_costs(const RunHistory& history);

// `metrics` may be null. Empty: no recommendation is possible.
[[nodiscard]] std::vector<Recommendation> recommend(const RunHistory& history,
                                                    const MetricsSummary* metrics);
// As a fragment of a configuration that `driftless config check` accepts. It starts with the road
// of files in `directory`, because encodings depend on layouts; empty: no road.
[[nodiscard]] std::string to_yaml(const std::vector<Recommendation>& settings,
                                  const std::string& directory, DirectoryLayout layout);

}  // namespace driftless
