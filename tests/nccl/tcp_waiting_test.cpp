// SPDX-License-Identifier: Apache-2.0
// A process that waits on the nccl road logs for whom, after 5 seconds and then every 30 seconds.
// The clock of the waiting thread moves by its own sleeps.
#include "support/still_environment.h"
#include "support/tcp_hub.h"

namespace driftless::testing {
namespace {

class NcclWaiting : public ::testing::Test {
 protected:
  std::shared_ptr<nccl::Fabric> fabric() {
    return std::make_shared<HostFabric>(meetings_, std::make_shared<FabricFaults>());
  }
  std::unique_ptr<SendRoad> leader(unsigned ranks) {
    auto hub = rendezvous_.hub();
    EXPECT_TRUE(is_ok(hub));
    auto road = nccl::make_leading_sender(options_, ranks, fabric(), std::move(*hub));
    EXPECT_TRUE(is_ok(road));
    return std::move(*road);
  }
  static hub::Connector to_nobody() {
    return [](const Deadline&) -> Result<std::unique_ptr<hub::Link>> {
      return error(StatusCode::kIo, "nobody listens");
    };
  }
  void expect_line(const std::string& text) {
    ASSERT_EQ(environment_.lines.size(), 2U);
    EXPECT_EQ(environment_.lines[0], "still waiting after 5 s: " + text);
    EXPECT_EQ(environment_.lines[1], "still waiting after 35 s: " + text);
  }

  TempDir dir_;
  HostRendezvous rendezvous_ =
      tcp_rendezvous(write_token(dir_.file("token"), "a secret of a test's run"));
  NcclOptions options_;
  std::shared_ptr<HostMeetings> meetings_ = std::make_shared<HostMeetings>();
  StillEnvironment environment_;
};

TEST_F(NcclWaiting, TheLeaderForReceivers) {
  options_.receivers = 2;
  const auto sender = leader(1);
  auto connector = rendezvous_.connector();
  ASSERT_OK(connector);
  auto receiver = nccl::make_receiver(options_, fabric(), std::move(*connector));
  ASSERT_OK(receiver);
  ASSERT_OK((*receiver)->report({"one", 0, "there"}, soon()));
  const EnvironmentScope scope(environment_);
  const Status begun = sender->begin(step(1), in_ms(40'000));
  EXPECT_EQ(begun.code(), StatusCode::kDeadlineExceeded);
  const std::string text = concat("nccl: 1 of 2 receivers have joined (receiver one); ",
                                  to_string(step(1)), " waits for them");
  expect_line(text);
  EXPECT_TRUE(begun.message().starts_with(text)) << begun.to_string();
}

TEST_F(NcclWaiting, AnotherRankForTheLeader) {
  const auto sender = nccl::make_other_sender(options_, 1, 2, fabric(), to_nobody());
  const EnvironmentScope scope(environment_);
  const Status begun = sender->begin(step(1), in_ms(40'000));
  EXPECT_EQ(begun.code(), StatusCode::kDeadlineExceeded);
  expect_line("nccl: rank 1 looks for the leader: nobody listens");
}

TEST_F(NcclWaiting, AReceiverForTheLeader) {
  auto receiver = nccl::make_receiver(options_, fabric(), to_nobody());
  ASSERT_OK(receiver);
  const EnvironmentScope scope(environment_);
  const auto info = (*receiver)->run_info(in_ms(40'000));
  EXPECT_EQ(info.status().code(), StatusCode::kDeadlineExceeded);
  ASSERT_EQ(environment_.lines.size(), 2U);
  EXPECT_TRUE(environment_.lines[0].starts_with(
      "still waiting after 5 s: nccl: looking for the leading trainer"))
      << environment_.lines[0];
}

}  // namespace
}  // namespace driftless::testing
