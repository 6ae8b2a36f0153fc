// SPDX-License-Identifier: Apache-2.0
// Receivers of the nccl road die, stall, run out of memory or get damaged bytes: the version fails
// within its deadline, and the next one goes to the remaining receivers.
#include "support/host_nccl_world.h"

namespace driftless::testing {
namespace {

using std::chrono::milliseconds;

class NcclFaultsTest : public ::testing::Test {
 protected:
  struct Peer {
    std::shared_ptr<FabricFaults> faults = std::make_shared<FabricFaults>();
    std::unique_ptr<ReceiveRoad> road;
  };

  void start_leader(unsigned receivers) {
    options_.silence = milliseconds(5'000);
    options_.receivers = receivers;
    auto hub = rendezvous_.hub();
    ASSERT_OK(hub);
    auto made = nccl::make_leading_sender(options_, 1, fabric(leader_faults_), std::move(*hub));
    ASSERT_OK(made);
    sender_ = std::move(*made);
  }

  Peer receiver(const std::string& id) {
    Peer peer;
    auto connector = rendezvous_.connector();
    EXPECT_TRUE(is_ok(connector));
    auto made = nccl::make_receiver(options_, fabric(peer.faults), std::move(*connector));
    EXPECT_TRUE(is_ok(made));
    peer.road = std::move(*made);
    EXPECT_TRUE(is_ok(peer.road->report({id, 0, "there"}, soon())));
    return peer;
  }

  // `fault` happens between begin() and flush().
  Status publish(const PublicationId& id, int wait_ms, const std::function<void()>& fault = [] {}) {
    const Deadline deadline = in_ms(wait_ms);
    DRIFTLESS_RETURN_IF_ERROR(sender_->begin(id, deadline));
    part_ = {"part", random_part(10'000, id.version)};
    DRIFTLESS_RETURN_IF_ERROR(write_part(*sender_, part_));
    fault();
    auto receipts = sender_->flush(deadline);
    Status status = receipts.status();
    if (receipts.ok()) status = sender_->seal(manifest_of(id), deadline);
    if (receipts.ok()) receipts_ = *receipts;
    if (!status.ok()) {
      EXPECT_TRUE(is_ok(sender_->abort()));
    }
    return status;
  }

  void expect_has(Peer& peer, const PublicationId& id) {
    expect_fetched(*peer.road, id, {{part_}}, receipts_);
  }

  std::shared_ptr<nccl::Fabric> fabric(std::shared_ptr<FabricFaults> faults) {
    return std::make_shared<HostFabric>(meetings_, std::move(faults));
  }

  TempDir dir_{TempDir::Where::kMemory};
  HostRendezvous rendezvous_ = file_rendezvous(dir_.file("meet"));
  NcclOptions options_;
  std::shared_ptr<HostMeetings> meetings_ = std::make_shared<HostMeetings>();
  std::shared_ptr<FabricFaults> leader_faults_ = std::make_shared<FabricFaults>();
  std::unique_ptr<SendRoad> sender_;
  TestPart part_;
  std::vector<PartReceipt> receipts_;
};

TEST_F(NcclFaultsTest, CommunicatorsAreReusedWhileTheReceiversStay) {
  start_leader(2);
  Peer a = receiver("a");
  Peer b = receiver("b");
  for (std::uint64_t v = 1; v <= 5; ++v) ASSERT_OK(publish(step(v), 5'000));
  expect_has(a, step(5));
  expect_has(b, step(5));
  EXPECT_EQ(leader_faults_->connects, 1U);
  EXPECT_EQ(a.faults->connects, 1U);
  Peer c = receiver("c");
  ASSERT_OK(publish(step(6), 5'000));
  EXPECT_EQ(leader_faults_->connects, 2U) << "a new group has a new communicator";
  expect_has(a, step(6));
  expect_has(c, step(6));
}

TEST_F(NcclFaultsTest, ALateReceiverGetsWhatComesFromThenOn) {
  start_leader(0);
  ASSERT_OK(publish(step(1), 5'000)) << "nobody is there, so nobody needs it";
  Peer late = receiver("late");
  EXPECT_TRUE(listed(*late.road).empty());
  ASSERT_OK(publish(step(2), 5'000));
  ASSERT_OK(publish(anchor(2), 5'000));
  EXPECT_EQ(listed(*late.road), (std::vector{step(2), anchor(2)}));
  const auto gone = late.road->fetch_manifest(step(1), soon());
  EXPECT_EQ(gone.status().code(), StatusCode::kNotFound);
}

TEST_F(NcclFaultsTest, AReceiverThatStallsCostsAVersionAndNoMore) {
  start_leader(2);
  Peer lively = receiver("lively");
  Peer stalled = receiver("stalled");
  ASSERT_OK(publish(step(1), 5'000));
  const auto begin = std::chrono::steady_clock::now();
  const Status failed = publish(step(2), 400, [&] { stalled.faults->stalls = true; });
  const auto took = std::chrono::steady_clock::now() - begin;
  EXPECT_EQ(failed.code(), StatusCode::kDeadlineExceeded) << failed.to_string();
  EXPECT_LT(took, milliseconds(1'500));
  EXPECT_FALSE(*sender_->published(step(2), soon()));
  EXPECT_EQ(listed(*lively.road), std::vector{step(1)}) << "nobody sees an aborted version";
  stalled.faults->stalls = false;
  ASSERT_OK(publish(step(2), 5'000));
  expect_has(lively, step(2));
}

TEST_F(NcclFaultsTest, AReceiverThatDiesWhileAVersionTravelsIsLeftOut) {
  start_leader(2);
  Peer a = receiver("a");
  Peer dying = receiver("dying");
  ASSERT_OK(publish(step(1), 5'000));
  const auto begin = std::chrono::steady_clock::now();
  const Status failed = publish(step(2), 5'000, [&] { dying.road.reset(); });
  const auto took = std::chrono::steady_clock::now() - begin;
  ASSERT_FALSE(failed.ok());
  EXPECT_NE(failed.message().find("dying"), std::string::npos) << failed.to_string();
  EXPECT_LT(took, milliseconds(2'500)) << "its end is noticed, not waited for";
  ASSERT_OK(publish(step(2), 5'000));
  expect_has(a, step(2));
  EXPECT_EQ(sender_->receivers()->size(), 1U);
}

TEST_F(NcclFaultsTest, DamagedBytesAreNotAcknowledged) {
  start_leader(1);
  Peer a = receiver("a");
  const Status failed = publish(step(1), 5'000, [&] { a.faults->corrupts = true; });
  EXPECT_EQ(failed.code(), StatusCode::kCorrupt) << failed.to_string();
  EXPECT_NE(failed.message().find("receiver a"), std::string::npos) << failed.to_string();
  EXPECT_TRUE(listed(*a.road).empty());
  ASSERT_OK(publish(step(1), 5'000));
  expect_has(a, step(1));
}

TEST_F(NcclFaultsTest, AReceiverWithoutMemoryReportsIt) {
  start_leader(1);
  Peer a = receiver("a");
  a.faults->full = true;
  const Status failed = publish(step(1), 5'000);
  EXPECT_EQ(failed.code(), StatusCode::kNoSpace) << failed.to_string();
  a.faults->full = false;
  ASSERT_OK(publish(step(1), 5'000));
  expect_has(a, step(1));
}

TEST_F(NcclFaultsTest, AReceiverThatHasLeftGetsNoVersions) {
  start_leader(2);
  Peer a = receiver("a");
  Peer leaving = receiver("leaving");
  ASSERT_OK(publish(step(1), 5'000));
  ASSERT_OK(leaving.road->leave(soon()));
  ASSERT_OK(publish(step(2), 5'000));
  expect_has(a, step(2));
  EXPECT_EQ(listed(*leaving.road), std::vector{step(1)});
  ASSERT_OK(leaving.road->report({"leaving", 1, "back"}, soon()));
  ASSERT_OK(publish(step(3), 5'000));
  expect_has(leaving, step(3));
}

TEST_F(NcclFaultsTest, TheFirstPublicationWaitsForTheConfiguredReceivers) {
  start_leader(1);
  const Status early = sender_->begin(step(1), in_ms(100));
  EXPECT_EQ(early.code(), StatusCode::kDeadlineExceeded) << early.to_string();
  Peer a = receiver("a");
  ASSERT_OK(publish(step(1), 5'000));
  expect_has(a, step(1));
}

TEST_F(NcclFaultsTest, ANewLeaderIsAnotherChain) {
  start_leader(1);
  Peer a = receiver("a");
  ASSERT_OK(sender_->announce("first run", soon()));
  ASSERT_OK(publish(step(1), 5'000));
  EXPECT_EQ(*a.road->run_info(soon()), "first run");
  sender_.reset();
  start_leader(1);
  ASSERT_OK(sender_->announce("second run", soon()));
  ASSERT_OK(publish(step(1), 10'000)) << "it waits until the receiver has found the new leader";
  expect_has(a, step(1));
  EXPECT_EQ(*a.road->run_info(soon()), "second run");
}

TEST_F(NcclFaultsTest, SealingTwiceOrBeforeTheFlushIsRefused) {
  start_leader(0);
  ASSERT_OK(sender_->begin(step(1), soon()));
  EXPECT_EQ(sender_->seal("manifest", soon()).code(), StatusCode::kInvalidArgument);
  ASSERT_OK(sender_->flush(soon()));
  ASSERT_OK(sender_->flush(soon())) << "the same receipts again";
  ASSERT_OK(sender_->seal("manifest", soon()));
  EXPECT_FALSE(sender_->seal("manifest", soon()).ok());
}

TEST(NcclFileRendezvous, TheLastToEndLeavesNoFiles) {
  for (const bool leader_ends_first : {false, true}) {
    const TempDir dir(TempDir::Where::kMemory);
    const HostRendezvous meet = file_rendezvous(dir.file("meet"));
    auto hub = meet.hub();
    ASSERT_OK(hub);
    auto connector = meet.connector();
    ASSERT_OK(connector);
    auto link = (*connector)(soon());
    ASSERT_OK(link);
    const std::vector<hub::HubEvent> came = (*hub)->poll(soon());
    ASSERT_EQ(came.size(), 1U);
    (*hub)->send(came[0].peer, "last word");
    if (leader_ends_first) {
      hub->reset();
      link->reset();
    } else {
      link->reset();
      hub->reset();
    }
    EXPECT_TRUE(std::filesystem::is_empty(dir.file("meet")))
        << (leader_ends_first ? "the leader ended first" : "the link ended first");
  }
}

TEST(NcclFileRendezvous, TwoLeadersDoNotMeet) {
  const TempDir dir(TempDir::Where::kMemory);
  const HostRendezvous meet = file_rendezvous(dir.file("meet"));
  auto first = meet.hub();
  ASSERT_OK(first);
  const auto refused = meet.hub();
  ASSERT_EQ(refused.status().code(), StatusCode::kBusy) << refused.status().to_string();
  std::filesystem::remove(dir.file("meet/.lock"));
  const auto second = meet.hub();
  ASSERT_OK(second);
  first->reset();
  EXPECT_TRUE(std::filesystem::exists(dir.file("meet/leader"))) << "the name is the second one's";
  auto connector = meet.connector();
  ASSERT_OK(connector);
  EXPECT_TRUE(is_ok((*connector)(soon())));
}

TEST(NcclFileRendezvous, RefusesADirectoryThatIsOpenToOthers) {
  const TempDir dir;
  const std::string open = dir.file("open");
  std::filesystem::create_directory(open);
  std::filesystem::permissions(open, std::filesystem::perms::all);
  const auto hub = hub::make_file_hub(open);
  ASSERT_FALSE(hub.ok());
  EXPECT_NE(hub.status().message().find("chmod 700"), std::string::npos);
}

}  // namespace
}  // namespace driftless::testing
