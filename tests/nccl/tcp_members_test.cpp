// SPDX-License-Identifier: Apache-2.0
// Members that know the token and send messages that only others may send. The leader drops them or
// ignores the messages, and its receiver still gets its versions.
#include <random>

#include "collectives/nccl/message.h"
#include "support/tcp_hub.h"

namespace driftless::testing {
namespace {

using nccl::Message;
using nccl::MessageKind;

class TcpMembers : public ::testing::Test {
 protected:
  void SetUp() override {
    options_.silence = std::chrono::seconds(10);
    options_.receivers = 1;
    options_.start = 7;
    auto hub = rendezvous_.hub();
    ASSERT_OK(hub);
    auto leader = nccl::make_leading_sender(options_, 1, fabric(), std::move(*hub));
    ASSERT_OK(leader);
    sender_ = std::move(*leader);
    auto connector = rendezvous_.connector();
    ASSERT_OK(connector);
    auto road = nccl::make_receiver(options_, fabric(), std::move(*connector));
    ASSERT_OK(road);
    receiver_ = std::move(*road);
    ASSERT_OK(receiver_->report({"receiver", 0, "there"}, soon()));
    publish_and_check();
  }

  void publish_and_check() {
    const PublicationId id = step(++version_);
    const TestPart part{"part", random_part(5'000, version_)};
    ASSERT_OK(sender_->begin(id, soon()));
    ASSERT_OK(write_part(*sender_, part));
    const auto receipts = sender_->flush(soon());
    ASSERT_OK(receipts);
    ASSERT_OK(sender_->seal(manifest_of(id), soon()));
    expect_fetched(*receiver_, id, {{part}}, *receipts);
  }

  std::unique_ptr<hub::Link> link() {
    auto connector = rendezvous_.connector();
    EXPECT_TRUE(is_ok(connector));
    auto made = (*connector)(soon());
    EXPECT_TRUE(is_ok(made));
    return std::move(*made);
  }
  static bool is_dropped(hub::Link& link) {
    const Deadline deadline = soon();
    while (!deadline.expired()) {
      if (!link.receive(deadline).ok()) return true;
    }
    return false;
  }

  std::shared_ptr<nccl::Fabric> fabric() {
    return std::make_shared<HostFabric>(meetings_, std::make_shared<FabricFaults>());
  }

  TempDir dir_;
  HostRendezvous rendezvous_ =
      tcp_rendezvous(write_token(dir_.file("token"), "a secret of a test's run"));
  NcclOptions options_;
  std::shared_ptr<HostMeetings> meetings_ = std::make_shared<HostMeetings>();
  std::unique_ptr<SendRoad> sender_;
  std::unique_ptr<ReceiveRoad> receiver_;
  std::uint64_t version_ = 0;
};

TEST_F(TcpMembers, WhatIsNoMessageEndsTheLink) {
  const std::string whole =
      nccl::to_bytes({.kind = MessageKind::kReport, .name = "x", .text = "y"});
  std::vector<std::string> texts = {"", "x", whole + "z", std::string(100'000, '\xff')};
  for (std::size_t size = 0; size < whole.size(); size += 3) texts.push_back(whole.substr(0, size));
  std::mt19937_64 random(3);
  for (int i = 0; i < 50; ++i) {
    std::string text = whole;
    text.resize(whole.size() - 1 - random() % 20);
    for (char& c : text) c = static_cast<char>(random());
    texts.push_back(text);
  }
  for (const std::string& text : texts) {
    if (nccl::parse_message(text).ok()) continue;
    const auto member = link();
    ASSERT_OK(member->send(text, soon()));
    EXPECT_TRUE(is_dropped(*member)) << text.size() << " bytes";
  }
  publish_and_check();
}

TEST_F(TcpMembers, ARankOfAnotherJobOrStartIsDropped) {
  const std::initializer_list<Message> hellos = {
      {.kind = MessageKind::kHello, .rank = 0, .count = 1, .session = 6},
      {.kind = MessageKind::kHello, .rank = 0, .count = 2, .session = 7},
      {.kind = MessageKind::kHello, .rank = 1, .count = 1, .session = 7}};
  for (const Message& hello : hellos) {
    const auto member = link();
    ASSERT_OK(member->send(nccl::to_bytes(hello), soon()));
    EXPECT_TRUE(is_dropped(*member));
  }
  publish_and_check();
}

// Not a member of the group: it sends every kind of message, for this attempt and others, with and
// without a hello before it.
TEST_F(TcpMembers, MessagesThatAreNotASendersAreIgnored) {
  const std::vector<PartReceipt> parts = {{"part", 0, 5'000, {}}};
  for (const bool greets : {false, true}) {
    const auto member = link();
    if (greets) {
      ASSERT_OK(member->send(nccl::to_bytes({.kind = MessageKind::kHello}), soon()));
    }
    ASSERT_OK(sender_->begin(step(version_ + 1), soon()));
    for (unsigned kind = 0; kind <= static_cast<unsigned>(MessageKind::kLast); ++kind) {
      for (const std::uint64_t attempt : {0U, 1U, 2U, 3U, 4U}) {
        const Message message{.kind = static_cast<MessageKind>(kind),
                              .request = attempt,
                              .session = 7,
                              .attempt = attempt,
                              .generation = attempt,
                              .id = step(version_ + 1),
                              .name = "receiver",
                              .parts = parts};
        if (message.kind == MessageKind::kHello || message.kind == MessageKind::kReport) continue;
        ASSERT_OK(member->send(nccl::to_bytes(message), soon()));
      }
    }
    ASSERT_OK(sender_->abort());
    // One of the messages says that the member leaves: what is published waits for nobody then.
    EXPECT_TRUE(!greets || is_dropped(*member));
    publish_and_check();
    EXPECT_EQ(sender_->left(), std::vector<std::string>()) << "somebody else signed it off";
  }
}

}  // namespace
}  // namespace driftless::testing
