// SPDX-License-Identifier: Apache-2.0
// Which processes are admitted, and the effect of hostile bytes on the port.
#include "support/tcp_hub.h"

#include <random>

#include "collectives/hub/tcp/authentication.h"
#include "collectives/hub/tcp/socket.h"

namespace driftless::testing {
namespace {

using hub::HubEvent;

class TcpHubTest : public ::testing::Test {
 protected:
  void SetUp() override {
    options_.address = "127.0.0.1:0";
    options_.token_file = write_token(dir_.file("token"), "the secret of this run");
    auto hub = hub::make_tcp_hub(options_, &options_.address);
    ASSERT_OK(hub);
    hub_ = std::move(*hub);
  }

  // The events of the hub within `wait`, until there are `enough`.
  std::vector<HubEvent> events(std::size_t enough, int wait = 2'000) {
    std::vector<HubEvent> all;
    const Deadline deadline = in_ms(wait);
    while (all.size() < enough && !deadline.expired()) {
      for (HubEvent& event : hub_->poll(deadline)) all.push_back(std::move(event));
    }
    return all;
  }

  // Polls the hub meanwhile, because a connection needs that.
  Result<std::unique_ptr<hub::Link>> connect(const HubOptions& options) {
    auto connector = hub::make_tcp_connector(options);
    if (!connector.ok()) return connector.status();
    std::atomic<bool> done = false;
    std::thread looking([&] {
      while (!done) {
        for (HubEvent& event : hub_->poll(in_ms(5))) seen_.push_back(std::move(event));
      }
    });
    auto link = (*connector)(in_ms(5'000));
    done = true;
    looking.join();
    return link;
  }

  TempDir dir_;
  HubOptions options_;
  std::unique_ptr<hub::Hub> hub_;
  std::vector<HubEvent> seen_;
};

TEST_F(TcpHubTest, CarriesMessagesBothWaysInOrder) {
  auto link = connect(options_);
  ASSERT_OK(link);
  const std::string large(3'000'000, 'x');
  ASSERT_OK((*link)->send("first", soon()));
  ASSERT_OK((*link)->send("", soon()));
  std::thread sending([&] { EXPECT_TRUE(is_ok((*link)->send(large, soon()))); });
  std::vector<HubEvent> received = std::move(seen_);
  while (received.size() < 4) {
    for (HubEvent& event : hub_->poll(in_ms(100))) received.push_back(std::move(event));
  }
  sending.join();
  ASSERT_EQ(received.size(), 4U);
  EXPECT_EQ(received[0].kind, HubEvent::Kind::kCame);
  EXPECT_EQ(received[1].text, "first");
  EXPECT_EQ(received[2].text, "");
  EXPECT_EQ(received[3].text, large);
  hub_->send(received[0].peer, "answer");
  const auto answer = (*link)->receive(soon());
  ASSERT_OK(answer);
  EXPECT_EQ(answer->value(), "answer");
  EXPECT_FALSE((*link)->receive(in_ms(20))->has_value()) << "nothing more was sent";
}

TEST_F(TcpHubTest, BothSidesLearnThatTheOtherIsGone) {
  auto link = connect(options_);
  ASSERT_OK(link);
  const std::uint64_t peer = seen_.at(0).peer;
  hub_->drop(peer);
  EXPECT_EQ(events(1).at(0).kind, HubEvent::Kind::kWent);
  EXPECT_EQ((*link)->receive(in_ms(2'000)).status().code(), StatusCode::kIo);
  auto other = connect(options_);
  ASSERT_OK(other);
  other->reset();
  EXPECT_EQ(events(1).at(0).kind, HubEvent::Kind::kWent);
}

TEST_F(TcpHubTest, AConnectionWithoutTheTokenIsRefused) {
  HubOptions wrong = options_;
  wrong.token_file = write_token(dir_.file("wrong"), "another secret of 16+ bytes");
  EXPECT_FALSE(connect(wrong).ok());
  EXPECT_TRUE(seen_.empty()) << "somebody came in";
  EXPECT_TRUE(connect(options_).ok()) << "the hub goes on";
}

TEST_F(TcpHubTest, ATokenOthersCanReadOrThatIsShortIsRefused) {
  for (const auto& [secret, mode] :
       {std::pair("long enough, but readable", 0644U), std::pair("short", 0600U)}) {
    HubOptions options = options_;
    options.token_file = write_token(dir_.file("bad"), secret, mode);
    const auto hub = hub::make_tcp_hub(options);
    ASSERT_FALSE(hub.ok()) << secret;
    EXPECT_EQ(hub.status().code(), StatusCode::kInvalidArgument);
    EXPECT_FALSE(hub::make_tcp_connector(options).ok());
  }
}

TEST_F(TcpHubTest, AnAddressWithoutARealPortIsRefused) {
  const int real = std::stoi(options_.address.substr(options_.address.rfind(':') + 1));
  const std::string modulo = std::to_string(real + 65'536);  // getaddrinfo() takes it for `real`
  for (const std::string& port :
       {modulo, std::string("65536"), std::string("-1"), std::string("7x"), std::string("0")}) {
    const std::string address = "127.0.0.1:" + port;
    EXPECT_EQ(hub::connect_to(address, soon()).status().code(), StatusCode::kInvalidArgument)
        << address;
    EXPECT_FALSE(hub::local_host_towards(address).ok()) << address;
  }
  HubOptions beyond = options_;
  beyond.address = "127.0.0.1:65536";
  EXPECT_FALSE(hub::make_tcp_hub(beyond).ok());
}

TEST_F(TcpHubTest, RandomBytesDoNotDisturbIt) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 20; ++round) {
    auto socket = hub::connect_to(options_.address, soon());
    ASSERT_OK(socket);
    std::string bytes(random() % 5'000, '\0');
    for (char& c : bytes) c = static_cast<char>(random());
    const Status sent = hub::write_all(*socket, bytes, in_ms(200));
    EXPECT_TRUE(events(1, 10).empty());
  }
  EXPECT_TRUE(connect(options_).ok());
}

TEST_F(TcpHubTest, SilentConnectionsDoNotExcludeOthers) {
  auto known = connect(options_);
  ASSERT_OK(known);
  std::vector<hub::Socket> strangers;
  for (int i = 0; i < 300; ++i) {
    auto socket = hub::connect_to(options_.address, soon());
    ASSERT_OK(socket);
    strangers.push_back(std::move(*socket));
    if (i % 10 == 0) {
      EXPECT_TRUE(events(1, 1).empty());
    }
  }
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_TRUE(is_ok(connect(options_)));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(4));
  // The existing link stays.
  ASSERT_OK((*known)->send("still here", soon()));
  bool received = false;
  for (const HubEvent& event : events(3, 500)) received = received || event.text == "still here";
  EXPECT_TRUE(received);
}

TEST(TcpFrame, AChangedMissingOrRepeatedMessageIsFound) {
  hub::FrameWriter writer("key", hub::Direction::kToServer);
  std::vector<std::string> frames;
  for (const char* text : {"one", "two", "three"}) frames.push_back(*writer.frame(text));
  const auto read = [](const std::string& bytes, hub::Direction direction) {
    hub::FrameReader reader("key", direction);
    reader.append(bytes);
    std::vector<std::string> texts;
    while (true) {
      const auto next = reader.next();
      if (!next.ok() || !next->has_value()) return std::pair(texts, next.status());
      texts.push_back(**next);
    }
  };
  const auto good = read(frames[0] + frames[1] + frames[2], hub::Direction::kToServer);
  EXPECT_TRUE(good.second.ok());
  EXPECT_EQ(good.first, (std::vector<std::string>{"one", "two", "three"}));
  EXPECT_FALSE(read(frames[0] + frames[2], hub::Direction::kToServer).second.ok()) << "missing";
  EXPECT_FALSE(read(frames[0] + frames[0], hub::Direction::kToServer).second.ok()) << "repeated";
  EXPECT_FALSE(read(frames[0], hub::Direction::kToClient).second.ok()) << "sent back";
  for (std::size_t at = 0; at < frames[0].size(); ++at) {
    std::string changed = frames[0];
    changed[at] = static_cast<char>(changed[at] ^ 1);
    const auto result = read(changed, hub::Direction::kToServer);
    EXPECT_TRUE(result.first.empty()) << "byte " << at;  // or more bytes are waited for
  }
  std::string huge(40, '\xff');
  EXPECT_EQ(read(huge, hub::Direction::kToServer).second.code(), StatusCode::kCorrupt);
}

TEST(TcpFrame, ArrivesInAnyPieces) {
  hub::FrameWriter writer("key", hub::Direction::kToClient);
  std::string bytes = *writer.frame("some words");
  bytes += *writer.frame("");  // frames are numbered: in this order
  hub::FrameReader reader("key", hub::Direction::kToClient);
  std::vector<std::string> texts;
  for (const char c : bytes) {
    reader.append(std::string_view(&c, 1));
    const auto next = reader.next();
    ASSERT_OK(next);
    if (next->has_value()) texts.push_back(**next);
  }
  EXPECT_EQ(texts, (std::vector<std::string>{"some words", ""}));
}

}  // namespace
}  // namespace driftless::testing
