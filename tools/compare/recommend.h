// SPDX-License-Identifier: Apache-2.0
// Recommended settings for a run like the one that was read, each with the figure that it follows
// from.
#pragma once

#include "tools/compare/metrics_lines.h"
#include "tools/compare/run_history.h"

namespace driftless {

struct Recommendation {
  std::string key, value;  // of the configuration
  std::string why;
};

// Costs of all versions added up. An encoding that one version lacks is not measured.
[[nodiscard]] std::vector<EncodingCost> total_costs(const RunHistory& history);

// `metrics` may be null. Empty: nothing can be concluded.
[[nodiscard]] std::vector<Recommendation> recommend(const RunHistory& history,
                                                    const MetricsSummary* metrics);
// As a fragment of a configuration that `driftless config check` accepts. The road of files in
// `directory` stands before it, since encodings go with layouts; empty: no road.
[[nodiscard]] std::string to_yaml(const std::vector<Recommendation>& settings,
                                  const std::string& directory, DirectoryLayout layout);

}  // namespace driftless
