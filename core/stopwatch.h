// SPDX-License-Identifier: Apache-2.0
// Durations and times for reports. No decision may depend on them.
#pragma once

#include <chrono>
#include <string>

#include "core/environment.h"

namespace driftless {

class Stopwatch {
 public:
  // Since construction or the last lap.
  [[nodiscard]] double lap_ms() {
    const auto now = environment().now();
    const double ms = std::chrono::duration<double, std::milli>(now - begin_).count();
    begin_ = now;
    return ms;
  }

 private:
  Environment::TimePoint begin_ = environment().now();
};

// "2026-01-31T12:00:00Z".
[[nodiscard]] std::string utc_now();

}  // namespace driftless
