// SPDX-License-Identifier: Apache-2.0
#include "plugin/job/watchdog.h"

#include <gtest/gtest.h>

#include <future>

namespace driftless {
namespace {

using namespace std::chrono_literals;

TEST(Watchdog, ReportsWhileTheWatchedCallStillWaits) {
  std::promise<std::string> reported;
  const Watchdog watchdog(Deadline::after(10ms), "making windows",
                          [&](const Status& why) { reported.set_value(why.to_string()); });
  // The call that does not come back.
  EXPECT_EQ(reported.get_future().get(), "deadline_exceeded: making windows: gave up after 10 ms");
}

TEST(Watchdog, ReportsNothingIfTheCallWasInTime) {
  bool late = false;
  for (int i = 0; i < 100; ++i) {
    const Watchdog watchdog(Deadline::after(20s), "a call", [&](const Status&) { late = true; });
  }
  EXPECT_FALSE(late);
}

TEST(Watchdog, WatchesNothingWithoutAHandler) {
  const Watchdog watchdog(Deadline::after(0ms), "a call", {});
}

}  // namespace
}  // namespace driftless
