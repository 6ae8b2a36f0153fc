// SPDX-License-Identifier: Apache-2.0
// The HTML page of `driftless report`.
#pragma once

#include "tools/compare/recommend.h"

namespace driftless::cli {

struct RunReport {
  std::string source;  // RUN without the private parts of a URL; empty: only metrics files
  RunHistory history;  // empty without a RUN
  std::optional<MetricsSummary> metrics;
  std::vector<Recommendation> settings;
  std::string yaml;

  [[nodiscard]] std::string run_id() const;  // "unknown" if no source names it
  // Sentences about what was left out or could not be read.
  [[nodiscard]] std::vector<std::string> notes() const;
};

[[nodiscard]] std::string page_of(const RunReport& report);

}  // namespace driftless::cli
