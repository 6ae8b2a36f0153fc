// SPDX-License-Identifier: Apache-2.0
// A leader that closes sends a goodbye as its last message: no process waits for an answer after
// that.
#include <future>
#include <thread>

#include "support/nccl_farewell.h"

namespace driftless::testing {
namespace {

using std::chrono::milliseconds;

bool becomes_true(const std::atomic<bool>& flag) {
  const Deadline patience = soon();
  Backoff backoff(milliseconds(1), milliseconds(10));
  while (!flag && backoff.sleep(patience)) continue;
  return flag;
}

TEST_P(NcclFarewellTest, LeavingALeaderThatHasClosedIsDoneAtOnce) {
  ASSERT_NO_FATAL_FAILURE(start_leader_and_receiver());
  sender_.reset();
  ASSERT_OK(receiver_->leave(soon()));
  ASSERT_OK(receiver_->leave(soon())) << "who has left may say so again";
  EXPECT_EQ(listed(*receiver_), std::vector{step(1)}) << "what was received stays";
}

TEST_P(NcclFarewellTest, ReceiversLearnTheEndOfTheRunAndMayLeaveWithoutAGoodbye) {
  ASSERT_NO_FATAL_FAILURE(start_leader_and_receiver());
  EXPECT_EQ(receivers_end_->text(), std::nullopt);
  leaders_end_->publish("the end", soon());
  EXPECT_EQ(receivers_end_->text(), "the end") << "publish() returns once the receivers have it";
  faults_->fall_silent();
  sender_.reset();
  const Status left = receiver_->leave(in_ms(GetParam().name == "tcp" ? 30'000 : 300));
  if (GetParam().name == "tcp") {
    EXPECT_TRUE(is_ok(left)) << "its link is lost";
  }
  EXPECT_EQ(listed(*receiver_), std::vector{step(1)});
}

TEST_P(NcclFarewellTest, ALeaveThatIsUnderWayIsSettledByTheFarewell) {
  ASSERT_NO_FATAL_FAILURE(start_leader_and_receiver());
  faults_->hold(nccl::MessageKind::kLeave);
  auto leaving = std::async(std::launch::async, [&] { return receiver_->leave(soon()); });
  ASSERT_TRUE(faults_->wait_until_one_is_held(soon()));
  sender_.reset();
  ASSERT_OK(leaving.get());
}

TEST_P(NcclFarewellTest, ReportsToALeaderThatHasClosedFailAtOnce) {
  ASSERT_NO_FATAL_FAILURE(start_leader_and_receiver());
  faults_->hold(nccl::MessageKind::kReport);
  const auto report = [&] { return receiver_->report({"r", 1, "proof"}, soon()); };
  auto reporting = std::async(std::launch::async, report);
  ASSERT_TRUE(faults_->wait_until_one_is_held(soon()));
  sender_.reset();
  const Status under_way = reporting.get();
  EXPECT_EQ(under_way.code(), StatusCode::kIo) << under_way.to_string();
  EXPECT_NE(under_way.message().find("has closed"), std::string::npos) << under_way.to_string();
  const Status later = report();
  EXPECT_EQ(later.code(), StatusCode::kIo) << later.to_string();
}

TEST_P(NcclFarewellTest, ARequestBeforeTheEndIsAnswered) {
  ASSERT_NO_FATAL_FAILURE(start_leader_and_receiver());
  faults_->hold_until_it_closes(nccl::MessageKind::kReport);
  auto reporting =
      std::async(std::launch::async, [&] { return receiver_->report({"r", 1, "proof"}, soon()); });
  ASSERT_TRUE(faults_->wait_until_one_is_held(soon()));
  sender_.reset();
  ASSERT_OK(reporting.get());
}

TEST_P(NcclFarewellTest, AReceiverThatLosesItsLinkReceivesTheFarewell) {
  options_.silence = std::chrono::seconds(5);  // a sign of life each second
  ASSERT_NO_FATAL_FAILURE(start_leader_and_receiver());
  link_faults_->tears = true;
  ASSERT_TRUE(becomes_true(link_faults_->deaf));
  sender_.reset();
  ASSERT_TRUE(becomes_true(link_faults_->torn)) << "no sign of life was given";
  ASSERT_OK(receiver_->leave(soon()));
}

TEST_P(NcclFarewellTest, LeavingWaitsForALeaderThatIsSlow) {
  ASSERT_NO_FATAL_FAILURE(start_leader_and_receiver());
  faults_->hold(nccl::MessageKind::kLeave);
  auto leaving = std::async(std::launch::async, [&] { return receiver_->leave(soon()); });
  ASSERT_TRUE(faults_->wait_until_one_is_held(soon()));
  EXPECT_EQ(leaving.wait_for(milliseconds(200)), std::future_status::timeout);
  EXPECT_EQ(sender_->receivers()->size(), 1U);
  faults_->release();
  ASSERT_OK(leaving.get());
  EXPECT_TRUE(sender_->receivers()->empty());
}

TEST_P(NcclFarewellTest, ALeaderThatDiedIsWaitedForUntilTheDeadline) {
  ASSERT_NO_FATAL_FAILURE(start_leader_and_receiver());
  faults_->fall_silent();
  const Status mute = receiver_->leave(in_ms(300));
  EXPECT_EQ(mute.code(), StatusCode::kDeadlineExceeded) << mute.to_string();
  EXPECT_NE(mute.message().find("the leader does not answer"), std::string::npos)
      << mute.to_string();
  sender_.reset();  // its links end without a goodbye
  const Status gone = receiver_->leave(in_ms(300));
  EXPECT_EQ(gone.code(), StatusCode::kDeadlineExceeded) << gone.to_string();
}

TEST_P(NcclFarewellTest, ReportsAndLeavesReachANewLeader) {
  ASSERT_NO_FATAL_FAILURE(start_leader_and_receiver());
  sender_.reset();
  ASSERT_NO_FATAL_FAILURE(start_leader(1, 1));
  ASSERT_OK(publish(step(1))) << "it waits until the receiver has found the new leader";
  ASSERT_OK(receiver_->report({"r", 1, "proof"}, soon()));
  EXPECT_EQ(sender_->receivers()->size(), 1U);
  ASSERT_OK(receiver_->leave(soon()));
  EXPECT_TRUE(sender_->receivers()->empty());
}

TEST_P(NcclFarewellTest, OtherPublisherRanksLearnThatTheLeaderHasClosed) {
  ASSERT_NO_FATAL_FAILURE(start_leader(2, 0));
  auto connector = meet_.connector();
  ASSERT_OK(connector);
  const auto other = nccl::make_other_sender(options_, 1, 2, fabric(), std::move(*connector));
  ASSERT_OK(other->published(step(1), soon()));
  sender_.reset();
  const Status closed = other->published(step(1), soon()).status();
  EXPECT_EQ(closed.code(), StatusCode::kIo) << closed.to_string();
}

// A rank of an earlier start of the job that was stopped and continues later does not join the next
// start.
TEST_P(NcclFarewellTest, ARankOfAnotherStartIsDropped) {
  options_.start = 2;
  ASSERT_NO_FATAL_FAILURE(start_leader(2, 0));
  for (const std::uint64_t start : {1U, 2U}) {
    options_.start = start;
    auto connector = meet_.connector();
    ASSERT_OK(connector);
    const auto other = nccl::make_other_sender(options_, 1, 2, fabric(), std::move(*connector));
    EXPECT_EQ(other->published(step(1), in_ms(start == 2 ? 5'000 : 500)).ok(), start == 2);
  }
}

// Also if the other side is about to send, and thereby finds the link lost.
TEST_P(NcclFarewellTest, MessagesThatAHubSendsBeforeItEndsArrive) {
  auto hub = meet_.hub();
  ASSERT_OK(hub);
  auto connector = meet_.connector();
  ASSERT_OK(connector);
  auto connecting = std::async(std::launch::async, [&] { return (*connector)(in_ms(5'000)); });
  while (connecting.wait_for(milliseconds(0)) != std::future_status::ready) {
    EXPECT_LE((*hub)->poll(in_ms(5)).size(), 1U);
  }
  auto link = connecting.get();
  ASSERT_OK(link);
  ASSERT_OK((*link)->send("hello", soon()));
  std::vector<hub::HubEvent> received;
  const Deadline patience = soon();
  while ((received.empty() || received.back().text != "hello") && !patience.expired()) {
    received = (*hub)->poll(patience);
  }
  ASSERT_FALSE(received.empty());
  ASSERT_OK((*link)->send("not read any more", soon()));
  (*hub)->send(received.back().peer, "last word");
  hub->reset();
  for (int i = 0; i < 50; ++i) {
    if (!(*link)->send("to nobody", in_ms(1'000)).ok()) break;
    std::this_thread::sleep_for(milliseconds(2));
  }
  const auto last = (*link)->receive(soon());
  ASSERT_OK(last);
  EXPECT_EQ(last->value_or("nothing"), "last word");
  EXPECT_EQ((*link)->receive(soon()).status().code(), StatusCode::kIo);
}

}  // namespace
}  // namespace driftless::testing
