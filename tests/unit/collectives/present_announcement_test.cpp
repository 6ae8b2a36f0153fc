// SPDX-License-Identifier: Apache-2.0
#include "collectives/present_announcement.h"

#include <gtest/gtest.h>

#include <deque>

#include "collectives/forwarding_receive_road.h"
#include "support/still_environment.h"

namespace driftless {
namespace {

using namespace std::chrono_literals;

// Answers as the test chose; each answer takes `delay`.
class Store final : public ForwardingReceiveRoad {
 public:
  Store() : ForwardingReceiveRoad(std::shared_ptr<ReceiveRoad>()) {}
  Result<std::string> run_info(const Deadline&) override {
    ++asked;
    environment().sleep_until(environment().now() + delay);
    if (answers.empty()) return error(StatusCode::kIo, "the store does not answer");
    Result<std::string> answer = std::move(answers.front());
    answers.pop_front();
    return answer;
  }
  std::deque<Result<std::string>> answers;
  std::chrono::milliseconds delay = 5s;
  int asked = 0;
};

class PresentAnnouncementTest : public ::testing::Test {
 protected:
  auto find() { return present_announcement(store_, Deadline::after(30s)); }
  StillEnvironment still_;
  EnvironmentScope scope_{still_};
  Store store_;
};

TEST_F(PresentAnnouncementTest, DoesNotWaitForOne) {
  for (const StatusCode code : {StatusCode::kNotFound, StatusCode::kDeadlineExceeded}) {
    store_.answers.emplace_back(error(code, "nothing is announced"));
    const auto found = find();
    ASSERT_TRUE(found.ok()) << found.status().to_string();
    EXPECT_FALSE(found->has_value());
  }
  EXPECT_EQ(store_.asked, 2);
}

TEST_F(PresentAnnouncementTest, AsksAStoreAgainThatDoesNotAnswer) {
  for (int i = 0; i < 3; ++i) store_.answers.emplace_back(error(StatusCode::kIo, "no answer"));
  store_.answers.emplace_back("a run");
  const auto found = find();
  ASSERT_TRUE(found.ok()) << found.status().to_string();
  EXPECT_EQ(*found, "a run");
}

TEST_F(PresentAnnouncementTest, GivesUpAtTheDeadline) {
  const Deadline most = Deadline::after(36s);
  const auto found = find();
  EXPECT_EQ(found.status().code(), StatusCode::kIo);
  EXPECT_FALSE(most.expired());
  EXPECT_GE(store_.asked, 3);
}

TEST_F(PresentAnnouncementTest, TakesAFailureThatComesAtOnceAsTheAnswer) {
  store_.delay = 0ms;
  EXPECT_EQ(find().status().code(), StatusCode::kIo);
  store_.delay = 5s;
  store_.answers.emplace_back(error(StatusCode::kCorrupt, "damaged"));
  EXPECT_EQ(find().status().code(), StatusCode::kCorrupt);
  EXPECT_EQ(store_.asked, 2);
}

}  // namespace
}  // namespace driftless
