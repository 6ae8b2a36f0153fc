// SPDX-License-Identifier: Apache-2.0
// Several services of a run on one address. Each has its own peers and messages, and starts and
// ends by itself; all share one limit for memory.
#include "support/hub_groups.h"

namespace driftless::testing {
namespace {

using hub::HubEvent;
using std::chrono::milliseconds;

class HubPort : public ::testing::Test {
 protected:
  std::unique_ptr<hub::Hub> serve(const std::string& service) {
    auto hub = ports_.leader()->serve(service);
    EXPECT_TRUE(is_ok(hub));
    return std::move(*hub);
  }
  Result<std::unique_ptr<hub::Link>> link_to(const std::string& service) {
    DRIFTLESS_ASSIGN_OR_RETURN(const hub::Connector connect, ports_.other()->connector(service));
    return connect(soon());
  }
  static std::vector<HubEvent> events(hub::Hub& hub, std::size_t enough, int wait_ms = 20'000) {
    std::vector<HubEvent> all;
    const Deadline deadline = in_ms(wait_ms);
    while (all.size() < enough && !deadline.expired()) {
      std::ranges::move(hub.poll(deadline), std::back_inserter(all));
    }
    return all;
  }
  static std::string next(hub::Link& link) {
    const auto message = link.receive(soon());
    EXPECT_TRUE(is_ok(message));
    return message.ok() && *message ? **message : "nothing";
  }

  HubPorts ports_;
};

TEST_F(HubPort, ServicesOnOneAddressReceiveFromTheirPeersOnly) {
  const auto one = serve("one");
  const auto two = serve("two");
  auto to_one = link_to("one");
  auto to_two = link_to("two");
  ASSERT_OK(to_one);
  ASSERT_OK(to_two);
  ASSERT_OK((*to_one)->send("for one", soon()));
  ASSERT_OK((*to_two)->send("for two", soon()));
  const auto of_one = events(*one, 2);
  const auto of_two = events(*two, 2);
  ASSERT_EQ(of_one.size(), 2U);
  ASSERT_EQ(of_two.size(), 2U);
  EXPECT_EQ(of_one[0].kind, HubEvent::Kind::kCame);
  EXPECT_EQ(of_one[1].text, "for one");
  EXPECT_EQ(of_two[1].text, "for two");
  // The hub of one service does not reach a peer of another.
  one->send(of_two[0].peer, "stray");
  one->drop(of_two[0].peer);
  two->send(of_two[0].peer, "back");
  EXPECT_EQ(next(**to_two), "back");
  to_one->reset();
  const auto went = events(*one, 1);
  ASSERT_EQ(went.size(), 1U);
  EXPECT_EQ(went[0].kind, HubEvent::Kind::kWent);
}

TEST_F(HubPort, AServiceIsServedOnceAndAgainAfterItsEnd) {
  auto first = serve("one");
  EXPECT_EQ(ports_.leader()->serve("one").status().code(), StatusCode::kBusy);
  auto link = link_to("one");
  ASSERT_OK(link);
  const std::uint64_t peer = events(*first, 1)[0].peer;
  first->send(peer, std::string(300'000, 'x'));
  first->send(peer, "the last word");
  first.reset();
  EXPECT_EQ(next(**link).size(), 300'000U);
  EXPECT_EQ(next(**link), "the last word");
  EXPECT_EQ((*link)->receive(soon()).status().code(), StatusCode::kIo);
  const auto missing = link_to("one");
  EXPECT_EQ(missing.status().code(), StatusCode::kIo);
  EXPECT_NE(missing.status().message().find("does not serve 'one'"), std::string::npos)
      << missing.status().to_string();
  const auto again = serve("one");
  ASSERT_OK(link_to("one"));
}

TEST_F(HubPort, AnUnknownServiceNameIsRefused) {
  const auto one = serve("one");
  auto connect = hub::make_tcp_connector(ports_.options());
  ASSERT_OK(connect);
  const auto silent = (*connect)(soon());
  ASSERT_OK(silent);
  for (const std::string& name :
       {std::string(), std::string("held "), std::string(200'000, 'n'), std::string("\0\xff", 2)}) {
    const auto link = (*connect)(soon());
    ASSERT_OK(link);
    ASSERT_OK((*link)->send(name, soon()));
    EXPECT_NE(next(**link).find("does not serve"), std::string::npos);
    EXPECT_EQ((*link)->receive(soon()).status().code(), StatusCode::kIo);
  }
  auto member = link_to("one");
  ASSERT_OK(member);
  EXPECT_EQ(events(*one, 1).size(), 1U);
  EXPECT_TRUE(events(*one, 1, 50).empty());
}

// No service takes the messages: with the fifth one of 256 MiB, more than 1 GiB waits.
TEST_F(HubPort, LongBeyondTheBoundThePeerWithTheMostGoes) {
  const auto one = serve("one");
  auto quiet = link_to("one");
  auto large = link_to("one");
  ASSERT_OK(quiet);
  ASSERT_OK(large);
  const auto came = events(*one, 2);
  ASSERT_EQ(came.size(), 2U);
  ASSERT_OK((*quiet)->send("still there", soon()));
  const std::string text(hub::kMaxMessageBytes, 'x');
  for (int i = 0; i < 5; ++i) static_cast<void>((*large)->send(text, in_ms(60'000)));
  while ((*large)->receive(in_ms(60'000)).ok()) continue;  // until it is dropped
  const auto left = events(*one, 2);
  ASSERT_EQ(left.size(), 2U) << "what the other said, and the end of that one";
  EXPECT_EQ(left[0].text, "still there");
  EXPECT_EQ(left[1].kind, HubEvent::Kind::kWent);
  one->send(left[0].peer, "heard");
  EXPECT_EQ(next(**quiet), "heard");
}

}  // namespace
}  // namespace driftless::testing
