// SPDX-License-Identifier: Apache-2.0
// PrometheusMetrics: exports the records of one process as Prometheus metrics, in the text format
// 0.0.4. docs/operate/metrics.md describes each metric.
//
// One thread at a time adds records; any thread may call text() meanwhile. Engines and receivers
// are labels, so their number is bounded: at most kMostSeries of each have metrics.
#pragma once

#include <memory>

#include "plugin/observe/metrics_text.h"
#include "plugin/observe/record_sink.h"

namespace driftless {

class PrometheusMetrics : public RecordSink, public MetricsText {
 public:
  static constexpr std::size_t kMostSeries = 1'024;
  static constexpr std::size_t kMostLabelBytes = 512;  // longer names are cut off
};

// Metrics for the process named by `origin`. kUnsupported without prometheus-cpp; the message names
// the package to install.
[[nodiscard]] Result<std::unique_ptr<PrometheusMetrics>> make_prometheus_metrics(
    const RecordOrigin& origin);

}  // namespace driftless
