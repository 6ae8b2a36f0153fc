// SPDX-License-Identifier: Apache-2.0
// Waiting: makes a wait for other processes visible. After 5 seconds, and then every 30 seconds, it
// logs the processes that are still missing, through Environment::log().
//
//   Waiting waiting;
//   const auto whom = [&] { return "nothing from ranks 2, 3; rank 1 has answered"; };
//   do {
//     if (there()) return {};
//   } while (waiting.sleep(backoff, deadline, whom));
//   return deadline.check(whom());
//
// A long time between two calls on one object starts a new wait, because the process did not wait
// in that time. One thread at a time.
#pragma once

#include <string>

#include "core/deadline.h"

namespace driftless {

class Waiting {
 public:
  static constexpr std::chrono::seconds kFirst{5}, kEvery{30};

  // `whom` is called only if a line is due.
  template <typename Whom>
  void look(const Whom& whom) {
    if (due()) log(whom());
  }
  // Prints a line if one is due, then sleeps. False: the deadline is over.
  template <typename Whom>
  [[nodiscard]] bool sleep(Backoff& backoff, const Deadline& deadline, const Whom& whom) {
    look(whom);
    return backoff.sleep(deadline);
  }
  // Ends the wait: its condition is met.
  void restart();

 private:
  [[nodiscard]] bool due();
  void log(const std::string& whom) const;

  Environment::TimePoint since_ = environment().now();
  Environment::TimePoint looked_ = since_;
  Environment::TimePoint next_ = since_ + kFirst;
};

}  // namespace driftless
