// SPDX-License-Identifier: Apache-2.0
#include "collectives/shared_fs/visibility_hook.h"

#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "support/temp_dir.h"

namespace driftless::shared_fs {
namespace {

using std::chrono::milliseconds;
constexpr milliseconds kLong(20'000);

Status run(const std::string& command, milliseconds timeout = kLong) {
  return run_hook({"before_read", command, {{"DRIFTLESS_DIR", "/some/dir"}}}, timeout,
                  Deadline::after(kLong));
}

std::string content(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(VisibilityHookTest, AnEmptyCommandIsNothing) { EXPECT_TRUE(run("").ok()); }

TEST(VisibilityHookTest, TheShellGetsTheVariablesAndTheRestOfTheEnvironment) {
  const testing::TempDir dir;
  const std::string out = dir.file("out");
  ::setenv("DRIFTLESS_DIR", "another", 1);
  ::setenv("HOOK_TEST_PASSED_ON", "yes", 1);
  const Status status = run("echo \"$DRIFTLESS_DIR $HOOK_TEST_PASSED_ON\" > " + out +
                            " && cat <&0 | wc -c >> " + out);
  ::unsetenv("DRIFTLESS_DIR");
  ASSERT_TRUE(status.ok()) << status.to_string();
  EXPECT_EQ(content(out), "/some/dir yes\n0\n") << "and there is no input";
}

TEST(VisibilityHookTest, AFailureHasTheExitStatusAndTheLastLineOfOutput) {
  const Status status = run("echo first >&2; echo out; echo 'no such mount' >&2; exit 3");
  ASSERT_EQ(status.code(), StatusCode::kIo);
  for (const char* part : {"before_read", "status 3", "no such mount"}) {
    EXPECT_NE(status.message().find(part), std::string::npos) << status.to_string();
  }
  EXPECT_EQ(status.message().find('\n'), std::string::npos);
  EXPECT_NE(run("kill -TERM $$").message().find("signal 15"), std::string::npos);
}

TEST(VisibilityHookTest, LongOutputDoesNotBlockIt) {
  const Status status = run("yes 0123456789 | head -c 3000000 >&2; echo end >&2; exit 1");
  ASSERT_EQ(status.code(), StatusCode::kIo);
  EXPECT_TRUE(status.message().ends_with("end")) << status.to_string();
  EXPECT_LT(status.message().size(), 1000U);
}

TEST(VisibilityHookTest, ATimeoutKillsTheWholeGroup) {
  const testing::TempDir dir;
  const auto begin = std::chrono::steady_clock::now();
  const Status status =
      run("(sleep 3; touch " + dir.file("late") + ") & sleep 300", milliseconds(100));
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded) << status.to_string();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, kLong);
  std::this_thread::sleep_for(milliseconds(3300));
  EXPECT_FALSE(std::filesystem::exists(dir.file("late"))) << "a child went on";
}

TEST(VisibilityHookTest, TheCallersDeadlineCountsToo) {
  const Status status =
      run_hook({"before_read", "sleep 30", {}}, kLong, Deadline::after(milliseconds(50)));
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
  const Status late =
      run_hook({"before_read", "exit 0", {}}, kLong, Deadline::after(milliseconds(0)));
  EXPECT_EQ(late.code(), StatusCode::kDeadlineExceeded) << "not started any more";
}

TEST(VisibilityHookTest, ABackgroundChildDoesNotHoldItUp) {
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_TRUE(run("sleep 60 &").ok());
  EXPECT_LT(std::chrono::steady_clock::now() - begin, kLong);
}

TEST(VisibilityHookTest, BlockedSignalsAreNotPassedOn) {
  sigset_t blocked;
  sigset_t before;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGTERM);
  ::pthread_sigmask(SIG_BLOCK, &blocked, &before);
  const Status status = run("kill -TERM $$; exit 0");
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  EXPECT_NE(status.message().find("signal 15"), std::string::npos) << status.to_string();
}

}  // namespace
}  // namespace driftless::shared_fs
