// SPDX-License-Identifier: Apache-2.0
// An Environment whose clock only moves when somebody sleeps. It has no threads, and keeps the
// lines that are logged.
#pragma once

#include <string>
#include <vector>

#include "core/environment.h"

namespace driftless {

class StillEnvironment final : public Environment {
 public:
  TimePoint now() override { return now_; }
  void sleep_until(TimePoint when) override { now_ = std::max(now_, when); }
  [[nodiscard]] bool has_threads() const override { return false; }
  Hash128 random() override { return {1, ++randoms_}; }
  void log(std::string_view line) override { lines.emplace_back(line); }

  std::vector<std::string> lines;

 private:
  TimePoint now_{std::chrono::hours(1)};
  std::uint64_t randoms_ = 0;
};

}  // namespace driftless
