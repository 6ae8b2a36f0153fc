// SPDX-License-Identifier: Apache-2.0
// The state of both roads in one process. Private to collectives/fallback.
#pragma once

#include <atomic>

#include "collectives/fallback/fallback_road.h"

namespace driftless::fallback {

struct State {
  FallbackRoads roads;
  std::atomic<bool> used = false;  // the second road is in use

  [[nodiscard]] AnnouncedRun read(std::string_view run_info) const {
    return (roads.read ? roads.read(run_info) : std::nullopt).value_or(AnnouncedRun());
  }
  // Whether the run on the second road is known to be that of another job.
  [[nodiscard]] bool is_of_another_job(const AnnouncedRun& there) const {
    return !there.job.empty() && !roads.job.empty() && there.job != roads.job;
  }

  // Only the first call in a process has an effect.
  void go_over(std::string_view reason) {
    if (used.exchange(true) || !roads.log) return;
    roads.log(concat(roads.label, " ", reason, "; using ", roads.name, " instead."));
  }
};

[[nodiscard]] Result<std::unique_ptr<SendRoad>> make_sender(std::shared_ptr<State> state);
[[nodiscard]] Result<std::unique_ptr<ReceiveRoad>> make_receiver(std::shared_ptr<State> state);

}  // namespace driftless::fallback
