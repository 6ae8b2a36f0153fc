// SPDX-License-Identifier: Apache-2.0
// Watchdog: a deadline for calls into a library that have none (MPI_Init, creating windows).
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "core/status.h"
#include "core/waiting.h"

namespace driftless {

// Called on the watchdog's thread with "<what>: gave up after 5000 ms" (kDeadlineExceeded), while
// the watched call still blocks its own thread. Such a call can only be ended together with the
// process. So this is for programs: the handler reports the reason and ends the process.
using LateHandler = std::function<void(const Status& why)>;

// Watches from construction to destruction, which waits for a running handler. Meanwhile it prints
// what the process waits for (core/waiting.h), and at the deadline it calls the handler, if there
// is one.
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
