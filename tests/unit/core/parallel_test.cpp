// SPDX-License-Identifier: Apache-2.0
#include "core/parallel.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace driftless {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

// Work of uneven length, so that tasks finish out of order.
void dawdle(std::size_t task) {
  std::this_thread::sleep_for(std::chrono::microseconds((task * 7919) % 5 * 100));
}

TEST(DefaultThreads, IsAtLeastOne) { EXPECT_GE(default_threads(), 1U); }

TEST(ParallelFor, CallsEveryTaskOnceWithAWorkerInRange) {
  for (const unsigned threads : {1U, 2U, 3U, 16U}) {
    std::vector<std::atomic<int>> calls(100);
    const Status status =
        parallel_for(calls.size(), threads, [&](std::size_t task, unsigned worker) {
          EXPECT_LT(worker, threads);
          ++calls[task];
          return Status();
        });
    EXPECT_TRUE(status.ok());
    for (const auto& count : calls) EXPECT_EQ(count, 1);
  }
}

TEST(ParallelFor, AWorkerIsOneThread) {
  std::vector<std::thread::id> ids(4);
  std::mutex mutex;
  const Status status = parallel_for(200, 4, [&](std::size_t task, unsigned worker) {
    dawdle(task);
    const std::scoped_lock lock(mutex);
    if (ids[worker] == std::thread::id()) ids[worker] = std::this_thread::get_id();
    EXPECT_EQ(ids[worker], std::this_thread::get_id());
    return Status();
  });
  EXPECT_TRUE(status.ok());
}

TEST(ParallelFor, NoTasksAndNoThreadsAreFine) {
  EXPECT_TRUE(parallel_for(0, 4, [](std::size_t, unsigned) {
                return error(StatusCode::kInternal, "called");
              }).ok());
  int calls = 0;
  EXPECT_TRUE(parallel_for(3, 0, [&](std::size_t, unsigned worker) {
                EXPECT_EQ(worker, 0U);
                ++calls;
                return Status();
              }).ok());
  EXPECT_EQ(calls, 3);
}

TEST(ParallelFor, ReturnsTheFailureOfTheLowestTaskThatFailed) {
  // Both tasks are running before either fails, and the higher one fails first.
  std::atomic<int> running = 0;
  std::atomic<bool> higher_failed = false;
  const Status status = parallel_for(2, 2, [&](std::size_t task, unsigned) -> Status {
    ++running;
    while (running < 2) std::this_thread::yield();
    if (task == 0) {
      while (!higher_failed) std::this_thread::yield();
    }
    if (task == 1) higher_failed = true;
    return error(StatusCode::kIo, "task ", task);
  });
  EXPECT_EQ(status.message(), "task 0");
}

TEST(ParallelFor, StartsNothingAfterAFailure) {
  std::atomic<int> calls = 0;
  const Status status = parallel_for(1000, 1, [&](std::size_t task, unsigned) -> Status {
    ++calls;
    return task == 5 ? error(StatusCode::kCorrupt, "five") : Status();
  });
  EXPECT_EQ(status.code(), StatusCode::kCorrupt);
  EXPECT_EQ(calls, 6);
}

TEST(ParallelFor, ExceptionsBecomeInternalErrors) {
  const Status known = parallel_for(4, 2, [](std::size_t task, unsigned) -> Status {
    if (task == 2) throw std::runtime_error("boom");
    return {};
  });
  EXPECT_EQ(known.code(), StatusCode::kInternal);
  EXPECT_NE(known.message().find("boom"), std::string_view::npos);
  const Status unknown = parallel_for(4, 2, [](std::size_t task, unsigned) -> Status {
    if (task == 2) throw 42;  // NOLINT(hicpp-exception-baseclass)
    return {};
  });
  EXPECT_EQ(unknown.code(), StatusCode::kInternal);
}

// In a child, whose address space has room for one or two more threads.
TEST(ParallelFor, DoesTheWorkWithFewerThreadsThanRequested) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer needs the address space that this test takes away";
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const rlimit limit{std::uint64_t{64} << 20, std::uint64_t{64} << 20};
    if (::setrlimit(RLIMIT_AS, &limit) != 0) ::_exit(2);
    std::atomic<int> calls = 0;
    const Status status = parallel_for(50, 64, [&](std::size_t task, unsigned) {
      dawdle(task);
      ++calls;
      return Status();
    });
    ::_exit(status.ok() && calls == 50 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

TEST(OrderedPipeline, ConsumesEveryTaskInOrderFromItsSlot) {
  constexpr std::size_t kTasks = 200;
  for (const unsigned threads : {1U, 2U, 5U}) {
    for (const std::size_t slots : {1U, 2U, 7U, 500U}) {
      std::vector<std::size_t> held(slots, ~std::size_t{0});
      std::vector<std::size_t> consumed;
      const Status status = ordered_pipeline(
          kTasks, threads, slots,
          [&](std::size_t task, std::size_t slot) {
            EXPECT_LT(slot, slots);
            if (task % 16 == 0) dawdle(task);
            held[slot] = task;
            return Status();
          },
          [&](std::size_t task, std::size_t slot) {
            EXPECT_EQ(held[slot], task);
            consumed.push_back(task);
            return Status();
          });
      EXPECT_TRUE(status.ok());
      ASSERT_EQ(consumed.size(), kTasks);
      EXPECT_TRUE(std::is_sorted(consumed.begin(), consumed.end()));
    }
  }
}

TEST(OrderedPipeline, ProducersStayWithinTheSlots) {
  constexpr std::size_t kSlots = 3;
  std::atomic<std::size_t> consumed = 0;
  const Status status = ordered_pipeline(
      100, 4, kSlots,
      [&](std::size_t task, std::size_t) {
        EXPECT_LT(task, consumed + kSlots + 1);  // the one being consumed still counts as held
        return Status();
      },
      [&](std::size_t task, std::size_t) {
        dawdle(task);
        ++consumed;
        return Status();
      });
  EXPECT_TRUE(status.ok());
}

TEST(OrderedPipeline, OneConsumerAtATime) {
  std::atomic<int> inside = 0;
  const Status status = ordered_pipeline(
      100, 4, 4, [](std::size_t, std::size_t) { return Status(); },
      [&](std::size_t task, std::size_t) {
        EXPECT_EQ(++inside, 1);
        dawdle(task);
        --inside;
        return Status();
      });
  EXPECT_TRUE(status.ok());
}

TEST(OrderedPipeline, AFailedProducerIsNotConsumedNorAnythingAfterIt) {
  for (const unsigned threads : {1U, 4U}) {
    std::vector<std::size_t> consumed;
    const Status status = ordered_pipeline(
        100, threads, 4,
        [](std::size_t task, std::size_t) {
          dawdle(task);
          return task == 20 ? error(StatusCode::kNoSpace, "twenty") : Status();
        },
        [&](std::size_t task, std::size_t) {
          consumed.push_back(task);
          return Status();
        });
    EXPECT_EQ(status.message(), "twenty");
    EXPECT_TRUE(consumed.empty() || consumed.back() < 20);
  }
}

TEST(OrderedPipeline, AFailedConsumerStopsEverything) {
  std::atomic<std::size_t> produced = 0;
  std::size_t last = 0;
  const Status status = ordered_pipeline(
      10'000, 4, 4,
      [&](std::size_t, std::size_t) {
        ++produced;
        return Status();
      },
      [&](std::size_t task, std::size_t) {
        last = task;
        return task == 9 ? error(StatusCode::kIo, "nine") : Status();
      });
  EXPECT_EQ(status.message(), "nine");
  EXPECT_EQ(last, 9U);
  EXPECT_LE(produced, 9U + 1 + 4);
}

TEST(OrderedPipeline, ExceptionsBecomeInternalErrors) {
  const auto fine = [](std::size_t, std::size_t) { return Status(); };
  const auto throws = [](std::size_t task, std::size_t) -> Status {
    if (task == 3) throw std::runtime_error("boom");
    return {};
  };
  EXPECT_EQ(ordered_pipeline(10, 3, 2, throws, fine).code(), StatusCode::kInternal);
  EXPECT_EQ(ordered_pipeline(10, 3, 2, fine, throws).code(), StatusCode::kInternal);
}

TEST(OrderedPipeline, NoTasksIsFineAndNoSlotsIsADefect) {
  const auto fine = [](std::size_t, std::size_t) { return Status(); };
  EXPECT_TRUE(ordered_pipeline(0, 4, 2, fine, fine).ok());
  EXPECT_TRUE(ordered_pipeline(5, 0, 1, fine, fine).ok());
  EXPECT_EQ(ordered_pipeline(5, 2, 0, fine, fine).code(), StatusCode::kInternal);
}

}  // namespace
}  // namespace driftless
