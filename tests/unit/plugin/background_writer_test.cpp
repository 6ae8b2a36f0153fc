// SPDX-License-Identifier: Apache-2.0
#include "plugin/publish/rank_payload.h"

#include <gtest/gtest.h>

#include <future>
#include <stdexcept>
#include <thread>
#include <vector>

namespace driftless {
namespace {

TEST(BackgroundWriter, DoesTheWorkInOrderAndAllOfIt) {
  for (const bool background : {false, true}) {
    std::vector<int> done;
    BackgroundWriter writer(background);
    EXPECT_EQ(writer.background(), background);
    for (int i = 0; i < 100; ++i) {
      ASSERT_TRUE(writer
                      .hand_over([&done, i] {
                        done.push_back(i);
                        return Status();
                      })
                      .ok());
    }
    EXPECT_TRUE(writer.finish().ok());
    ASSERT_EQ(done.size(), 100U);
    for (int i = 0; i < 100; ++i) EXPECT_EQ(done[static_cast<std::size_t>(i)], i);
  }
}

TEST(BackgroundWriter, ReturnsWhileTheWorkIsDone) {
  std::promise<void> go_on;
  std::future<void> released = go_on.get_future();
  BackgroundWriter writer(true);
  ASSERT_TRUE(writer
                  .hand_over([&released] {
                    released.wait();
                    return Status();
                  })
                  .ok());
  go_on.set_value();  // if the call did the work itself, it would never return
  EXPECT_TRUE(writer.finish().ok());
}

TEST(BackgroundWriter, AFailureStaysAndEndsTheWork) {
  for (const bool background : {false, true}) {
    int done = 0;
    BackgroundWriter writer(background);
    // The failure is returned by this call or by a later one.
    const Status first =
        writer.hand_over([] { return error(StatusCode::kNoSpace, "the disk is full"); });
    EXPECT_EQ(first.ok(), background);
    const Status second = writer.hand_over([&done] {
      ++done;
      return Status();
    });
    EXPECT_EQ(second.code(), StatusCode::kNoSpace);
    EXPECT_EQ(writer.finish().code(), StatusCode::kNoSpace);
    EXPECT_EQ(done, 0);
  }
}

TEST(BackgroundWriter, WhatTheWorkThrowsIsAStatus) {
  for (const bool background : {false, true}) {
    BackgroundWriter writer(background);
    const Status first = writer.hand_over([]() -> Status { throw std::bad_alloc(); });
    EXPECT_EQ(first.ok(), background);
    EXPECT_EQ(writer.finish().code(), StatusCode::kNoSpace);
  }
}

TEST(BackgroundWriter, TheDestructorWaits) {
  bool done = false;
  {
    BackgroundWriter writer(true);
    ASSERT_TRUE(writer
                    .hand_over([&done] {
                      std::this_thread::sleep_for(std::chrono::milliseconds(20));
                      done = true;
                      return Status();
                    })
                    .ok());
  }
  EXPECT_TRUE(done);
}

}  // namespace
}  // namespace driftless
