// SPDX-License-Identifier: Apache-2.0
// What runs the checks of `driftless doctor`. The checks themselves: tests/python/test_doctor.py.
#include "tools/doctor/doctor.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>

#include "core/disk_space.h"
#include "tools/doctor/command_output.h"

namespace driftless::doctor {
namespace {

using enum FindingState;
using std::chrono::milliseconds;

std::vector<Row> run(std::vector<Check> checks, milliseconds wait = milliseconds(5'000)) {
  Context context;
  context.deadline = Deadline::after(wait);
  return run_checks(checks, context);
}

TEST(DoctorRunner, RowsComeInTheOrderOfTheChecksOnOneLineEach) {
  const auto slow = [](const Context&, const Report& report) {
    ::usleep(50'000);
    report({"slow", kOk, "two\nlines\x1b[31m", std::string(5'000, 'x')});
  };
  const auto quick = [](const Context&, const Report& report) {
    report({"quick", kSkip, "not UTF-8: \xff"});
    report({"second", kWarn, "b", "next"});
  };
  const std::vector<Row> rows = run({{"a", slow}, {"b", quick}});
  ASSERT_EQ(rows.size(), 3U);
  EXPECT_EQ(rows[0].group, "a");
  EXPECT_EQ(rows[0].finding.finding, "two lines\\u001b[31m");
  EXPECT_LT(rows[0].finding.next.size(), 700U);
  EXPECT_EQ(rows[1].finding.state, kSkip);
  EXPECT_EQ(rows[2].finding.check, "second");
  EXPECT_EQ(rows[2].finding.next, "next");
}

TEST(DoctorRunner, AHungCheckAndACrashedOneCostOnlyThemselves) {
  const auto hangs = [](const Context&, const Report& report) {
    report({"first", kOk, "kept"});
    for (;;) ::pause();
  };
  const auto crashes = [](const Context&, const Report&) { ::raise(SIGKILL); };
  const auto works = [](const Context&, const Report& report) { report({"c", kOk, "done"}); };
  const auto begin = Deadline::Clock::now();
  const std::vector<Row> rows = run(
      {{"a", hangs, kFail, "look there"}, {"b", crashes, kWarn}, {"c", works}}, milliseconds(300));
  EXPECT_LT(Deadline::Clock::now() - begin, milliseconds(3'000));
  ASSERT_EQ(rows.size(), 4U);
  EXPECT_EQ(rows[0].finding.finding, "kept");
  EXPECT_EQ(rows[1].finding.state, kFail);
  EXPECT_NE(rows[1].finding.finding.find("after the check 'first'"), std::string::npos);
  EXPECT_EQ(rows[1].finding.next, "look there");
  EXPECT_EQ(rows[2].finding.state, kWarn);
  EXPECT_NE(rows[2].finding.finding.find("signal 9"), std::string::npos);
  EXPECT_EQ(rows[3].finding.finding, "done");
}

TEST(DoctorRunner, MoreThanAPipeHoldsComesThrough) {
  const auto talks = [](const Context&, const Report& report) {
    for (int i = 0; i < 1'000; ++i) report({concat(i), kOk, std::string(500, 'x')});
  };
  EXPECT_EQ(run({{"a", talks}}).size(), 1'000U);
}

TEST(DoctorCommand, OutputIsKeptAndATimeoutKills) {
  const CommandOutput ran = run_command("echo \"$WORD\"; echo err >&2; exit 3",
                                        {{"WORD", "out; $(false)"}}, milliseconds(5'000));
  EXPECT_EQ(ran.status.code(), StatusCode::kIo);
  EXPECT_EQ(ran.text, "out; $(false)\nerr\n");
  const CommandOutput late = run_command("sleep 60", {}, milliseconds(100));
  EXPECT_EQ(late.status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(first_line("\n ---- \nword\n"), "word");
  EXPECT_EQ(find_program("sh").substr(0, 1), "/");
  EXPECT_EQ(find_program("no-such-program-anywhere"), "");
}

TEST(DiskSpace, SizesKeepTwoDigits) {
  EXPECT_EQ(about(999), "999");
  EXPECT_EQ(about((std::uint64_t{12} << 30) + 5), "12GiB");
  EXPECT_EQ(about((std::uint64_t{19} << 29) + 5), "9728MiB");
  EXPECT_FALSE(disk_space("/nowhere/at/all").ok());
}

}  // namespace
}  // namespace driftless::doctor
