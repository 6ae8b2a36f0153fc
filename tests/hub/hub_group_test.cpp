// SPDX-License-Identifier: Apache-2.0
// Groups over the hub: the contract of groups; which processes are admitted, and which ranks are
// named as missing; lost links, second processes of a rank and other attempts.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <atomic>
#include <filesystem>

#include "support/hub_groups.h"
#include "support/still_environment.h"

namespace driftless::testing {
namespace {

class HubGroupWorld final : public RoadWorld {
 public:
  explicit HubGroupWorld(const WorldOptions& options)
      : groups_(make_hub_groups(ports_, options.ranks)) {}
  [[nodiscard]] unsigned ranks() const override { return static_cast<unsigned>(groups_.size()); }
  [[nodiscard]] SendRoad& sender(unsigned) override { std::abort(); }  // a group alone
  [[nodiscard]] Group& group(unsigned rank) override { return *groups_[rank]; }
  [[nodiscard]] std::unique_ptr<ReceiveRoad> receiver() override { return nullptr; }

 private:
  HubPorts ports_;
  std::vector<std::unique_ptr<Group>> groups_;
};

const RoadCase kHubGroups{.name = "hub", .make = [](const WorldOptions& options) {
                            return std::make_unique<HubGroupWorld>(options);
                          }};
INSTANTIATE_TEST_SUITE_P(Hub, GroupContractTest, ::testing::Values(kHubGroups), road_case_name);

using Groups = std::vector<std::unique_ptr<Group>>;

// Gathers one message of each rank, and broadcasts one of rank 0, in a new epoch.
::testing::AssertionResult meet(const Groups& groups) {
  std::vector<Status> ended(groups.size());
  std::vector<std::thread> threads;
  for (unsigned rank = 0; rank < groups.size(); ++rank) {
    threads.emplace_back([&, rank] {
      Group& group = *groups[rank];
      group.next_epoch();
      const auto all = group.gather(concat("of ", rank), soon());
      const auto word = group.broadcast("word", soon());
      ended[rank] = all.ok() ? word.status() : all.status();
      if (rank == 0 && all.ok() && (*all)[1] != "of 1") {
        ended[rank] = error(StatusCode::kInternal, "rank 0 heard ", (*all)[1]);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Status& status : ended) {
    if (!status.ok()) return is_ok(status);
  }
  return ::testing::AssertionSuccess();
}

// Every connection of this process to the port breaks, as if the network had dropped it.
void cut_links(const std::string& address) {
  const int port = std::stoi(address.substr(address.rfind(':') + 1));
  for (const auto& each : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int file = std::stoi(each.path().filename());
    sockaddr_in peer{};
    socklen_t size = sizeof(peer);
    if (::getpeername(file, reinterpret_cast<sockaddr*>(&peer), &size) != 0) continue;
    if (peer.sin_family == AF_INET && ntohs(peer.sin_port) == port) ::shutdown(file, SHUT_RDWR);
  }
}

TEST(HubGroup, ADeadlineNamesThoseThatHaveNotJoinedAndThatWereRefused) {
  const HubPorts ports;
  Status refused;
  std::thread stranger(
      [&] { refused = ports.group({1, 4, "another attempt", "group"}, in_ms(4'000)).status(); });
  std::thread member([&] { EXPECT_TRUE(is_ok(ports.group({2, 4, "this one", "group"}))); });
  const auto group = ports.group({0, 4, "this one", "group"}, in_ms(3'000));
  stranger.join();
  member.join();
  ASSERT_EQ(group.status().code(), StatusCode::kDeadlineExceeded);
  const std::string text(group.status().message());
  EXPECT_NE(text.find("publisher rank 1, publisher rank 3 of 4 have not joined"), std::string::npos)
      << text;
  EXPECT_NE(text.find("refused: rank 1 of 4 of attempt 'another attempt'"), std::string::npos)
      << text;
  ASSERT_EQ(refused.code(), StatusCode::kDeadlineExceeded) << refused.to_string();
  const std::string why(refused.message());
  EXPECT_TRUE(why.find("rank 0 of 4 of attempt 'this one'") != std::string::npos ||
              why.find("does not serve") != std::string::npos)
      << why;
}

// The clock of this thread moves by its own sleeps.
TEST(HubGroup, AWaitIsVisibleAfterFiveSecondsAndEveryThirty) {
  const HubPorts ports;
  StillEnvironment environment;
  const EnvironmentScope scope(environment);
  const auto leader = ports.group({0, 3, "", "group"}, in_ms(70'000));
  EXPECT_EQ(leader.status().code(), StatusCode::kDeadlineExceeded);
  const std::string missing = "hub: publisher rank 1, publisher rank 2 of 3 have not joined";
  ASSERT_EQ(environment.lines.size(), 3U);
  EXPECT_TRUE(environment.lines[0].starts_with("still waiting after 5 s: " + missing));
  EXPECT_TRUE(environment.lines[1].starts_with("still waiting after 35 s: " + missing));
  EXPECT_TRUE(environment.lines[2].starts_with("still waiting after 65 s: " + missing));
  environment.lines.clear();
  HubOptions nobody = ports.options();
  nobody.address = "127.0.0.1:1";
  const auto member =
      hub::make_hub_group(hub::make_tcp_port(nobody), {1, 3, "", "group"}, in_ms(40'000));
  EXPECT_EQ(member.status().code(), StatusCode::kDeadlineExceeded);
  ASSERT_EQ(environment.lines.size(), 2U);
  EXPECT_NE(environment.lines[0].find("publisher rank 1 joins the group of trainers: "),
            std::string::npos);
  EXPECT_NE(environment.lines[0].find("127.0.0.1:1"), std::string::npos) << environment.lines[0];
}

TEST(HubGroup, OfTwoProcessesOfOneRankTheSecondIsRefused) {
  const HubPorts ports;
  const Groups groups = make_hub_groups(ports, 3);
  std::thread looks([&] {  // rank 0 is in a call meanwhile
    EXPECT_EQ(groups[0]->gather("", in_ms(4'000)).status().code(), StatusCode::kDeadlineExceeded);
  });
  const auto second = ports.group({1, 3, "", "group"}, in_ms(3'000));
  looks.join();
  ASSERT_EQ(second.status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_NE(second.status().message().find("has joined as that rank"), std::string::npos)
      << second.status().to_string();
  EXPECT_TRUE(meet(groups));
}

TEST(HubGroup, ALostLinkIsMadeAgainAndTheNextEpochMeets) {
  const HubPorts ports;
  const Groups groups = make_hub_groups(ports, 4);
  for (int round = 0; round < 3; ++round) {
    ASSERT_TRUE(meet(groups)) << round;
    cut_links(ports.options().address);
  }
  EXPECT_TRUE(meet(groups));
}

TEST(HubGroup, MessagesOfARankOfAnEarlierStartAreDroppedAndItEnds) {
  HubPorts ports;
  Groups before = make_hub_groups(ports, 3);
  ASSERT_TRUE(meet(before));
  before[0].reset();
  ports.start_again();
  const Groups after = make_hub_groups(ports, 3);
  std::atomic<bool> answered = false;
  std::thread old([&] {
    before[1]->next_epoch();
    const Deadline deadline = soon();
    Status ended;
    while (ended.ok()) ended = before[1]->gather("old", deadline).status();
    EXPECT_EQ(ended.code(), StatusCode::kIo) << ended.to_string();
    EXPECT_NE(ended.message().find("rank 0 was started again"), std::string::npos)
        << ended.to_string();
    answered = true;
  });
  do {
    EXPECT_TRUE(meet(after));
  } while (!answered);
  old.join();
  EXPECT_TRUE(meet(after));
}

TEST(HubGroup, RanksOfALostLeaderWaitForItAndNameWhatTheyFind) {
  HubPorts ports;
  Groups groups = make_hub_groups(ports, 2);
  groups[0].reset();
  groups[1]->next_epoch();
  const auto received = groups[1]->broadcast("", in_ms(2'000));
  ASSERT_EQ(received.status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_NE(received.status().message().find("publisher rank 0 ("), std::string::npos)
      << received.status().to_string();
}

TEST(HubGroup, GroupsOfSeveralServicesDoNotMix) {
  const HubPorts ports;
  const Groups one = make_hub_groups(ports, 3, "", "group/1");
  const Groups two = make_hub_groups(ports, 3, "", "group/2");
  EXPECT_TRUE(meet(one));
  EXPECT_TRUE(meet(two));
  EXPECT_TRUE(meet(one));
}

TEST(HubGroup, MembersThatSendWhatIsNoHelloAreDropped) {
  const HubPorts ports;
  const Groups groups = make_hub_groups(ports, 2);
  auto connect = ports.other()->connector("group");
  ASSERT_OK(connect);
  for (const std::string& text :
       {std::string(), std::string("x"), std::string(100'000, '\xff'), std::string(32, '\0')}) {
    std::thread looks([&] { static_cast<void>(groups[0]->gather("", in_ms(100))); });
    const auto link = (*connect)(soon());
    ASSERT_OK(link);
    ASSERT_OK((*link)->send(text, soon()));
    looks.join();
    std::thread more([&] { EXPECT_TRUE(meet(groups)); });
    while ((*link)->receive(soon()).ok()) continue;
    more.join();
  }
  EXPECT_TRUE(meet(groups));
}

}  // namespace
}  // namespace driftless::testing
