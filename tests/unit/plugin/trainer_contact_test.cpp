// SPDX-License-Identifier: Apache-2.0
// A trainer that does not answer ends a rollout after deadlines.connect, however long one report
// may take otherwise.
#include <gtest/gtest.h>

#include "plugin/receive/run_end.h"
#include "support/still_environment.h"

namespace driftless {
namespace {

using namespace std::chrono_literals;
using std::chrono::milliseconds;

constexpr milliseconds kLongest = 10s;

class TrainerContactTest : public ::testing::Test {
 protected:
  void pass(milliseconds time) { still_.sleep_until(still_.now() + time); }
  // Reports that the trainer does not answer.
  static void report_in_vain(TrainerContact& contact, StillEnvironment& still) {
    const Deadline deadline = contact.begin_report(kLongest);
    still.sleep_until(deadline.at());
    contact.note(deadline.check("a report"));
  }
  // The time until check() fails, with a look for versions of 200 ms between the reports.
  milliseconds time_until_end(TrainerContact& contact) {
    const auto begin = still_.now();
    while (contact.check(7).ok()) {
      pass(200ms);
      if (contact.due()) report_in_vain(contact, still_);
    }
    return std::chrono::duration_cast<milliseconds>(still_.now() - begin);
  }

  StillEnvironment still_;
  EnvironmentScope scope_{still_};
};

TEST_F(TrainerContactTest, EndsWithinASecondOfThePatience) {
  for (const milliseconds patience : {1'000ms, 3'000ms, 25'000ms, 120'000ms}) {
    TrainerContact contact(patience);
    const milliseconds took = time_until_end(contact);
    EXPECT_GE(took, patience);
    EXPECT_LE(took, patience + 1'500ms);
    const Status ended = contact.check(7);
    EXPECT_EQ(ended.code(), StatusCode::kDeadlineExceeded);
    EXPECT_NE(ended.message().find(concat("deadlines.connect (", patience.count(), " ms)")),
              std::string_view::npos)
        << ended.to_string();
  }
}

TEST_F(TrainerContactTest, OneReportTakesNoLongerThanItsOwnLimit) {
  TrainerContact contact(120s);
  EXPECT_EQ(contact.begin_report(kLongest).remaining(), kLongest);
}

// The clock goes on while this process is stopped: its report then fails without a fault of the
// trainer.
TEST_F(TrainerContactTest, AProcessThatWasStoppedReportsOnceMore) {
  TrainerContact contact(3s);
  const Deadline deadline = contact.begin_report(kLongest);
  pass(60s);
  contact.note(deadline.check("a report"));
  EXPECT_TRUE(contact.check(7).ok());
  EXPECT_TRUE(contact.due());
  EXPECT_GE(contact.begin_report(kLongest).remaining(), 1s);
  contact.note({});
  EXPECT_TRUE(contact.check(7).ok());
  EXPECT_FALSE(contact.silent());
}

TEST_F(TrainerContactTest, AnAnswerBeginsThePatienceAnew) {
  TrainerContact contact(6s);
  report_in_vain(contact, still_);
  contact.note({});
  EXPECT_GE(time_until_end(contact), 6s);
}

}  // namespace
}  // namespace driftless
