// Milliseconds for reports.
#pragma once

#include <chrono>

namespace driftless {

class Stopwatch {
 public:
  // Since construction or the last lap.
  [[nodiscard]] double lap_ms() {
    const auto now = std::chrono::steady_clock::now();
    const double ms = std::chrono::duration<double, std::milli>(now - begin_).count();
    begin_ = now;
    return ms;
  }

 private:
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

}  // namespace driftless
