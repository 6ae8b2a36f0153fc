// SPDX-License-Identifier: Apache-2.0
#include "core/waiting.h"

#include <gtest/gtest.h>

#include "core/deadline.h"
#include "support/still_environment.h"

namespace driftless {
namespace {

using namespace std::chrono_literals;

class WaitingTest : public ::testing::Test {
 protected:
  // Looks twice a second.
  void wait(Waiting& waiting, std::chrono::seconds time) {
    const Deadline end = Deadline::after(time);
    while (!end.expired()) {
      waiting.look([this] {
        ++asked_;
        return concat("rank ", 3);
      });
      still_.sleep_until(still_.now() + 500ms);
    }
  }

  StillEnvironment still_;
  EnvironmentScope scope_{still_};
  int asked_ = 0;
};

TEST_F(WaitingTest, IsSilentAtFirst) {
  Waiting waiting;
  wait(waiting, 5s);
  EXPECT_TRUE(still_.lines.empty());
  EXPECT_EQ(asked_, 0);
}

TEST_F(WaitingTest, PrintsWhatItWaitsForAfterFiveSecondsAndEveryThirty) {
  Waiting waiting;
  wait(waiting, 70s);
  EXPECT_EQ(still_.lines, (std::vector<std::string>{"still waiting after 5 s: rank 3",
                                                    "still waiting after 35 s: rank 3",
                                                    "still waiting after 65 s: rank 3"}));
  EXPECT_EQ(asked_, 3);
}

TEST_F(WaitingTest, StartsAgainOnceItHasComeAndAfterAPause) {
  Waiting waiting;
  wait(waiting, 4s);
  waiting.restart();
  wait(waiting, 4s);
  still_.sleep_until(still_.now() + 31s);  // nobody waited
  wait(waiting, 4s);
  EXPECT_TRUE(still_.lines.empty());
  wait(waiting, 2s);
  EXPECT_EQ(still_.lines, std::vector<std::string>{"still waiting after 5 s: rank 3"});
}

bool stop_asked = false;

TEST_F(WaitingTest, AStopEndsAWaitAndIsPrinted) {
  stop_asked = false;
  const Deadline deadline = Deadline::after(60s).unless([] { return stop_asked; });
  Backoff backoff(40s, 40s);
  EXPECT_TRUE(backoff.sleep(deadline));
  EXPECT_FALSE(deadline.expired());
  stop_asked = true;
  const auto before = still_.now();
  EXPECT_FALSE(backoff.sleep(deadline));
  EXPECT_EQ(still_.now(), before);
  EXPECT_EQ(deadline.remaining(), 0ms);
  EXPECT_TRUE(deadline.sooner(1s).expired());
  EXPECT_EQ(deadline.check("rank 3").to_string(), "deadline_exceeded: rank 3: stopped");
}

}  // namespace
}  // namespace driftless
