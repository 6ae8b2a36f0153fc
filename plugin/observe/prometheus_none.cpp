// SPDX-License-Identifier: Apache-2.0
// Built in place of prometheus_metrics.cpp if prometheus-cpp was not found.
#include "plugin/observe/prometheus_metrics.h"

namespace driftless {

Result<std::unique_ptr<PrometheusMetrics>> make_prometheus_metrics(const RecordOrigin&) {
  return error(StatusCode::kUnsupported, "there are no Prometheus metrics: built without ",
               "prometheus-cpp, install it (Debian: prometheus-cpp-dev) and build again");
}

}  // namespace driftless
