// SPDX-License-Identifier: Apache-2.0
#include "plugin/job/watchdog.h"

#include <condition_variable>
#include <mutex>

namespace driftless {

Watchdog::Watchdog(const Deadline& deadline, std::string what, const LateHandler& late) {
  if (!late) return;
  thread_ = std::jthread([deadline, late, what = std::move(what)](const std::stop_token& done) {
    std::mutex mutex;
    std::condition_variable_any ended;
    std::unique_lock lock(mutex);
    ended.wait_until(lock, done, deadline.at(), [] { return false; });
    if (!done.stop_requested()) late(deadline.check(what));
  });
}

}  // namespace driftless
