// SPDX-License-Identifier: Apache-2.0
// Deadline and Backoff: how Driftless waits. Every wait ends. The time is the monotonic clock of
// the calling thread's Environment, never the calendar's.
#pragma once

#include <chrono>
#include <string_view>

#include "core/environment.h"
#include "core/status.h"

namespace driftless {

// A moment of the monotonic clock. A value; safe to share.
class Deadline {
 public:
  struct Clock {
    using time_point = Environment::TimePoint;
    [[nodiscard]] static time_point now() { return environment().now(); }
  };

  [[nodiscard]] static Deadline after(std::chrono::milliseconds wait);
  // The earlier of this one and `wait` from now.
  [[nodiscard]] Deadline sooner(std::chrono::milliseconds wait) const;
  // The same deadline, but it is also over once is_stopped() is true, for example after a signal.
  // A wait that sleeps by Backoff then ends within a fifth of a second; other waits end when they
  // next check the deadline.
  [[nodiscard]] Deadline unless(bool (*is_stopped)()) const;

  [[nodiscard]] bool expired() const { return stopped() || Clock::now() >= at_; }
  [[nodiscard]] bool stopped() const { return stopped_ != nullptr && stopped_(); }
  [[nodiscard]] bool can_stop() const { return stopped_ != nullptr; }
  // Never negative.
  [[nodiscard]] std::chrono::milliseconds remaining() const;
  [[nodiscard]] Clock::time_point at() const { return at_; }
  // Ok before the deadline; afterwards kDeadlineExceeded: "<what>: gave up after 5000 ms", or
  // "stopped".
  [[nodiscard]] Status check(std::string_view what) const;

 private:
  Deadline(Clock::time_point begin, Clock::time_point at) : begin_(begin), at_(at) {}
  Clock::time_point begin_;
  Clock::time_point at_;
  bool (*stopped_)() = nullptr;  // null: nothing stops it
};

// Sleeps between two checks of a condition: briefly at first, then twice as long each time.
class Backoff {
 public:
  Backoff(std::chrono::microseconds first, std::chrono::microseconds longest)
      : next_(first), first_(first), longest_(longest) {}
  // Sleeps, but never past the deadline; false if the deadline is over already.
  bool sleep(const Deadline& deadline);
  void reset() { next_ = first_; }

 private:
  std::chrono::microseconds next_, first_, longest_;
};

}  // namespace driftless
