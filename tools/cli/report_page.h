// SPDX-License-Identifier: Apache-2.0
// The page that `driftless report` writes.
#pragma once

#include "tools/compare/recommend.h"

namespace driftless::cli {

struct RunReport {
  std::string source;  // RUN, without what a URL may hide; empty: metrics files alone
  RunHistory history;  // empty if there is no RUN
  std::optional<MetricsSummary> metrics;
  std::vector<Recommendation> settings;
  std::string yaml;

  [[nodiscard]] std::string run_id() const;  // "unknown" if nobody names it
  // What was left out or could not be read, in sentences.
  [[nodiscard]] std::vector<std::string> notes() const;
};

[[nodiscard]] std::string page_of(const RunReport& report);

}  // namespace driftless::cli
