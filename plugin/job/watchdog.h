// SPDX-License-Identifier: Apache-2.0
// Watchdog: a deadline for calls into a library that has none (MPI_Init, making windows).
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "core/status.h"
#include "core/waiting.h"

namespace driftless {

// Called on a thread of the watchdog with "<what>: gave up after 5000 ms" (kDeadlineExceeded),
// while the call that was watched still holds its own. There is no way out of such a call but the
// end of the process, so this is for programs: it says why and ends the process.
using LateHandler = std::function<void(const Status& why)>;

// Watches from its construction to its destruction, which waits for a handler that returns. It
// prints what the process waits for (core/waiting.h). Without a handler it does no more.
class Watchdog {
 public:
  Watchdog(const Deadline& deadline, std::string what, const LateHandler& late) {
    thread_ = std::jthread([deadline, late, what = std::move(what)](const std::stop_token& done) {
      std::mutex mutex;
      std::condition_variable_any ended;
      std::unique_lock lock(mutex);
      Waiting waiting;
      while (!late || !deadline.expired()) {
        const Deadline look = Deadline::after(std::chrono::seconds(1));
        const auto until = late ? std::min(look.at(), deadline.at()) : look.at();
        ended.wait_until(lock, done, until, [] { return false; });
        if (done.stop_requested()) return;
        waiting.look([&] { return what; });
      }
      late(deadline.check(what));
    });
  }
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  std::jthread thread_;
};

}  // namespace driftless
