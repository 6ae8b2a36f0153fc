// SPDX-License-Identifier: Apache-2.0
#include "plugin/job/watchdog.h"

#include <utility>

namespace driftless {

Watchdog::Watchdog(const Deadline& deadline, std::string what, const LateHandler& late) {
  if (!late) return;
  thread_ = std::thread([this, deadline, late, what = std::move(what)] {
    std::unique_lock lock(mutex_);
    if (changed_.wait_until(lock, deadline.at(), [this] { return done_; })) return;
    lock.unlock();
    late(deadline.check(what));
  });
}

Watchdog::~Watchdog() {
  if (!thread_.joinable()) return;
  {
    const std::scoped_lock lock(mutex_);
    done_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

}  // namespace driftless
