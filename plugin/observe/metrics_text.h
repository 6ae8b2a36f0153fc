// SPDX-License-Identifier: Apache-2.0
// MetricsText: metrics as text, for the status server's /metrics.
//
// Any thread may call it.
#pragma once

#include <string>

namespace driftless {

class MetricsText {
 public:
  virtual ~MetricsText() = default;
  virtual std::string text() = 0;
};

}  // namespace driftless
