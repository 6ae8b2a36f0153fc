// SPDX-License-Identifier: Apache-2.0
#include "core/environment.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "core/deadline.h"
#include "core/parallel.h"
#include "support/still_environment.h"

namespace driftless {
namespace {

using std::chrono::milliseconds;

TEST(Environment, DecidesHowTimePassesForOneThread) {
  StillEnvironment still;
  const EnvironmentScope scope(still);
  const Deadline deadline = Deadline::after(std::chrono::hours(5));
  Backoff backoff(milliseconds(1), std::chrono::hours(1));
  int sleeps = 0;
  while (backoff.sleep(deadline)) ++sleeps;
  EXPECT_GT(sleeps, 10);
  EXPECT_TRUE(deadline.expired());
  bool others_are_real = false;
  std::thread([&] { others_are_real = &environment() != &still; }).join();
  EXPECT_TRUE(others_are_real);
}

TEST(Environment, IsTheSystemsAgainAfterTheScope) {
  StillEnvironment still;
  {
    const EnvironmentScope scope(still);
  }
  EXPECT_NE(&environment(), &still);
  EXPECT_TRUE(environment().has_threads());
  EXPECT_NE(random_hash128(), random_hash128());
}

TEST(Environment, WithoutThreadsTheCallerDoesAllWork) {
  StillEnvironment still;
  const EnvironmentScope scope(still);
  const auto caller = std::this_thread::get_id();
  int done = 0;
  const Status worked = parallel_for(20, 8, [&](std::size_t, unsigned worker) -> Status {
    done += worker == 0 && std::this_thread::get_id() == caller ? 1 : 0;
    return {};
  });
  EXPECT_TRUE(worked.ok());
  EXPECT_EQ(done, 20);
}

TEST(Environment, WaitsByTheClockOfTheEnvironment) {
  StillEnvironment still;
  const EnvironmentScope scope(still);
  std::mutex mutex;
  std::condition_variable changed;
  std::unique_lock lock(mutex);
  const auto end = still.now() + std::chrono::hours(1);
  EXPECT_FALSE(wait_until(changed, lock, end, [] { return false; }));
  EXPECT_GE(still.now(), end);
  int asked = 0;
  EXPECT_TRUE(wait_until(changed, lock, end + milliseconds(100), [&] { return ++asked == 5; }));
  EXPECT_TRUE(lock.owns_lock());
}

}  // namespace
}  // namespace driftless
